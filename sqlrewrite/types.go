package sqlrewrite

import pg_query "github.com/pganalyze/pg_query_go/v5"

// OIDs of pg_type.
const (
	oidBool     = 16
	oidName     = 19
	oidInt8     = 20
	oidInt2     = 21
	oidInt4     = 23
	oidText     = 25
	oidOID      = 26
	oidFloat8   = 701
	oidUnknown  = 705
	oidBpchar   = 1042
	oidVarchar  = 1043
	oidNumeric  = 1700
	oidRegclass = 2205
	oidVoid     = 2278
)

var typeOIDs = map[string]uint32{
	"bool": oidBool, "name": oidName, "int8": oidInt8, "int2": oidInt2, "int4": oidInt4, "text": oidText, "oid": oidOID,
	"float8": oidFloat8, "unknown": oidUnknown, "bpchar": oidBpchar, "varchar": oidVarchar, "numeric": oidNumeric,
	"regclass": oidRegclass,
}

// typeOID finds the type of a cast among those that are known here.
func typeOID(t *pg_query.TypeName) (oid uint32, typmod int32, ok bool) {
	if t == nil || t.Setof || t.PctType || len(t.ArrayBounds) > 0 || len(t.Names) == 0 || len(t.Names) > 2 {
		return 0, 0, false
	}
	if len(t.Names) == 2 && t.Names[0].GetString_().GetSval() != "pg_catalog" {
		return 0, 0, false
	}
	oid, ok = typeOIDs[t.Names[len(t.Names)-1].GetString_().GetSval()]
	if !ok {
		return 0, 0, false
	}
	var mods []int32
	for _, m := range t.Typmods {
		c := m.GetAConst().GetIval()
		if c == nil {
			return 0, 0, false
		}
		mods = append(mods, c.Ival)
	}
	switch {
	case len(mods) == 0:
		return oid, -1, true
	case len(mods) == 1 && (oid == oidVarchar || oid == oidBpchar) && mods[0] > 0:
		return oid, mods[0] + 4, true
	case oid == oidNumeric && len(mods) == 1 && mods[0] > 0:
		return oid, mods[0]<<16 + 4, true
	case oid == oidNumeric && len(mods) == 2 && mods[0] > 0 && mods[1] >= 0:
		return oid, (mods[0]<<16 | mods[1]) + 4, true
	}
	return 0, 0, false
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// fileValue is a setting as a YAML file has it.
type fileValue struct {
	key   string // nested keys joined by full stops
	value string
	items [][]fileValue // of a list of maps of plain values; value is empty then
	list  bool          // it is a list of plain values, joined by listSeparator
	line  int           // from 1
}

// parseFile reads the values of a YAML document in their order. Errors name the line and never the value.
func parseFile(data []byte) ([]fileValue, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil {
			return nil, fmt.Errorf("line %d: %s", e.GetToken().Position.Line, e.GetMessage())
		}
		return nil, errors.New("is not YAML")
	}
	var values []fileValue
	documents := 0
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if documents++; documents > 1 {
			return nil, errors.New("holds more than one document")
		}
		if values, err = flatten(nil, "", doc.Body); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// flatten appends the values under node, whose own key is key.
func flatten(values []fileValue, key string, node ast.Node) ([]fileValue, error) {
	line := node.GetToken().Position.Line
	var err error
	switch node := node.(type) {
	case *ast.CommentGroupNode:
		return values, nil
	case ast.MapNode:
		for it := node.MapRange(); it.Next(); {
			name := it.Key().GetToken().Value
			if key != "" {
				name = key + "." + name
			}
			if values, err = flatten(values, name, it.Value()); err != nil {
				return nil, err
			}
		}
		return values, nil
	case *ast.SequenceNode:
		if key != policiesKey && !slices.Contains(listKeys, key) {
			break
		}
		return flattenList(values, key, node)
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.LiteralNode:
		if key != "" {
			return append(values, fileValue{key: key, value: text(node), line: line}), nil
		}
	case *ast.NullNode:
		if key != "" {
			return nil, fmt.Errorf("line %d: %s has no value", line, key)
		}
	}
	if key == "" {
		return nil, fmt.Errorf("line %d: is not a list of settings, each as `key: value`", line)
	}
	return nil, fmt.Errorf("line %d: %s is not a plain value", line, key)
}

// flattenList appends a list: of maps, or of plain values.
func flattenList(values []fileValue, key string, node *ast.SequenceNode) ([]fileValue, error) {
	list := fileValue{key: key, line: node.GetToken().Position.Line}
	var plain []string
	for _, node := range node.Values {
		if _, ok := node.(ast.MapNode); ok && plain == nil {
			item, err := flatten(nil, "", node)
			if err != nil {
				return nil, err
			}
			list.items = append(list.items, item)
			continue
		}
		item, err := flatten(nil, key, node)
		if err != nil {
			return nil, err
		}
		if len(item) != 1 || item[0].key != key || item[0].items != nil || item[0].list || list.items != nil {
			return nil, fmt.Errorf("line %d: %s: is a list of this and that", node.GetToken().Position.Line, key)
		}
		plain = append(plain, item[0].value)
	}
	if list.items == nil {
		list.list, list.value = true, strings.Join(plain, listSeparator)
	}
	return append(values, list), nil
}

// text is a plain value as it was written, without quotes.
func text(node ast.Node) string {
	switch node := node.(type) {
	case *ast.StringNode:
		return node.Value
	case *ast.LiteralNode:
		return node.Value.Value
	}
	return node.GetToken().Value
}

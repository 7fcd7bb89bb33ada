package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextvald/nextvald/sequencer"
)

var (
	valuesTotal   = prometheus.NewDesc("nextvald_values_total", "Sequence values handed out.", nil, nil)
	leasesTotal   = prometheus.NewDesc("nextvald_leases_total", "Blocks of values leased from the store.", nil, nil)
	requestsTotal = prometheus.NewDesc("nextvald_store_requests_total",
		"Requests to the store, by operation and outcome: ok, refused (a condition was not met), failed, unknown (the answer was lost).",
		[]string{"op", "outcome"}, nil)
	cacheDepth = prometheus.NewDesc("nextvald_cache_depth", "Values leased and not handed out yet, of all sequences.", nil, nil)
	// Infinity rather than no sample: an alert on a short runway neither fires nor misses its data while nothing is used.
	runway = prometheus.NewDesc("nextvald_runway_seconds",
		"How long the values in memory last at the present rate, of the cached sequence for which that is the least; +Inf when none is in use.",
		nil, nil)
	connections = prometheus.NewDesc("nextvald_connections", "Clients that are connected.", nil, nil)
)

// metrics reads everything at once when it is asked, so that nothing is counted twice on the way of a value.
type metrics struct {
	stats       func() sequencer.Stats
	connections func() int
}

func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{valuesTotal, leasesTotal, requestsTotal, cacheDepth, runway, connections} {
		to <- d
	}
}

func (m *metrics) Collect(to chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64) { to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n) }

	stats := m.stats()
	counter(valuesTotal, stats.Values)
	counter(leasesTotal, stats.Leases)
	for request, n := range stats.Requests {
		counter(requestsTotal, n, request.Op, string(request.Outcome))
	}
	gauge(cacheDepth, float64(stats.Depth))
	gauge(runway, stats.Runway)
	gauge(connections, float64(m.connections()))
}

// Package metric holds metric values: the other output of correlate.
package metric

import "inferspan/correlate/trace"

// Type is an instrument type.
type Type uint8

// Instrument types.
const (
	Counter Type = iota
	Gauge
	Histogram
	UpDownCounter // a Gauge whose values may be added up over series
)

// Label is a dimension.
type Label struct{ Name, Value string }

// Point is one series of a family. Counters are cumulative since Start.
type Point struct {
	Labels   []Label  // in the documented order
	Value    float64  // Counter, Gauge, UpDownCounter; Histogram: the sum
	Count    uint64   // Histogram
	Buckets  []uint64 // Histogram: not cumulative, one more than Bounds
	Resource *trace.Resource
}

// Family is a metric with its series. Families and points are in a fixed order. The
// series of engines of different kinds may have different labels.
type Family struct {
	Name   string
	Help   string
	Unit   string // UCUM
	Type   Type
	Bounds []float64 // Histogram
	Points []Point
}

// Snapshot is the state of all metrics at one moment.
type Snapshot struct {
	Start, Time int64 // ns since the epoch
	Families    []Family
}

package vllm

import "inferspan/correlate/signal"

// TableStructs gives the field lists that the table has for a version.
func TableStructs(version string) (map[string][]string, error) {
	t, err := loadTable()
	if err != nil {
		return nil, err
	}
	s, _, _ := t.lookup(version)
	return s, nil
}

// Arrivals is how many requests are kept that no core has shown yet.
func (d *Decoder) Arrivals() int {
	n := 0
	for _, c := range d.cores {
		n += len(c.arrivals.of)
	}
	return n
}

// EndDispatched looks for the step whose outputs m has.
func (d *Decoder) EndDispatched(pid uint32, m *signal.StepOutput, sock uint64, emit func(signal.Signal)) {
	d.endDispatched(d.core(pid, 0), m, sock, emit)
}

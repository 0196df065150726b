package agent

import (
	"cmp"
	"slices"

	"inferspan/bpf/event"
)

// order keeps what the agent says of a moment until the kernel's records have been handed
// over up to then: on a busy host they can be seconds behind, in which what is said of now
// would be of another time. It is for one goroutine.
type order struct{ records []*event.Record }

// hold keeps a record, behind those of the same time. There is no error: it stands where
// records are handed over.
func (o *order) hold(r *event.Record) error {
	at, _ := slices.BinarySearchFunc(o.records, r.Time+1, func(x *event.Record, t uint64) int { return cmp.Compare(x.Time, t) })
	o.records = slices.Insert(o.records, at, r)
	return nil
}

// take hands over what is of before seen, the time up to which the kernel's records were
// handed over, in order.
func (o *order) take(put func(*event.Record) error, seen uint64) error {
	for len(o.records) > 0 && o.records[0].Time <= seen {
		r := o.records[0]
		o.records = o.records[1:]
		if err := put(r); err != nil {
			return err
		}
	}
	return nil
}

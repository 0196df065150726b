package term

import (
	"math"
	"math/rand/v2"
	"slices"
)

// keep is how many values a distribution holds. Up to so many its percentiles
// are exact; beyond it they are those of a uniform sample of that size
// (reservoir sampling, the same sample for the same input). The largest value
// and the count are always exact. 8 bytes each: at most 0.5 MiB.
const keep = 1 << 16

type dist struct {
	values []int64
	n      int
	max    int64
	rng    *rand.Rand
}

func (d *dist) add(o opt) {
	if !o.ok {
		return
	}
	if d.n == 0 || o.v > d.max {
		d.max = o.v
	}
	d.n++
	if len(d.values) < keep {
		d.values = append(d.values, o.v)
		return
	}
	if d.rng == nil {
		d.rng = rand.New(rand.NewPCG(keep, 0))
	}
	if i := d.rng.IntN(d.n); i < keep {
		d.values[i] = o.v
	}
}

func (d *dist) sampled() bool { return d.n > keep }

// at returns the smallest value that a share of at least q of the values does
// not exceed (nearest rank), for each q.
func (d *dist) at(qs ...float64) []opt {
	out := make([]opt, len(qs))
	if d.n == 0 {
		return out
	}
	slices.Sort(d.values)
	for i, q := range qs {
		// The subtraction keeps 0.99*100 from rounding up to rank 100.
		rank := int(math.Ceil(q*float64(len(d.values)) - 1e-9))
		out[i] = known(d.values[max(rank, 1)-1])
	}
	return out
}

package correlate

import (
	"testing"

	"inferspan/correlate/signal"
)

// TestFirstFrom: the first launch from a moment on is told if no earlier one can be missing.
func TestFirstFrom(t *testing.T) {
	many := [][2]float64{{10, 11}, {20, 21}, {30, 31}, {40, 41}, {50, 51}, {60, 61}, {70, 71}, {80, 81}}
	for _, c := range []struct {
		name   string
		first  float64
		bursts [][2]float64
		from   float64
		want   float64
	}{
		{"nothing was launched", 0, nil, 5, 0},
		{"all of it behind", 10, nil, 5, 10},
		{"at that moment", 10, nil, 10, 10},
		{"one before", 10, many[:3], 15, 20},
		{"all before", 10, many[:3], 35, 0},
		{"one goes on", 10, [][2]float64{{10, 25}, {30, 31}}, 20, 0},
		{"one ends then", 10, [][2]float64{{10, 20}, {30, 31}}, 20, 0},
		{"the room is used up", 10, many, 45, 50},
		{"the first one may be missing", 1, many, 5, 0},
		{"the first one is there", 1, many[:7], 5, 10},
		{"later ones are missing", 10, many, 15, 20},
		{"all that there is room for is before", 10, many, 85, 0},
		{"no bursts, as in older recordings", 10, nil, 15, 0},
	} {
		p := pass{first: at(c.first)}
		for i, b := range c.bursts {
			p.bursts[i] = signal.GPUBurst{First: at(b[0]), Last: at(b[1])}
		}
		if got := p.firstFrom(at(c.from)); got != at(c.want) {
			t.Errorf("%s: %d, want %d", c.name, got, at(c.want))
		}
	}
}

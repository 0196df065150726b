package correlate

import "inferspan/correlate/signal"

// clock converts monotonic to wall time with the latest sample. A request
// takes the offset once, when it begins, so that its times keep their distances
// whatever the wall clock does meanwhile.
type clock struct {
	off int64 // wall - mono
	ok  bool
}

func (k *clock) set(s *signal.Clock) {
	k.off, k.ok = int64(s.Wall)-int64(s.At), true
}

func (k *clock) wall(m signal.Mono) int64 { return int64(m) + k.off }

package agent

import (
	"cmp"
	"context"
	"time"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

// front looks into one front end until ctx ends or the process is gone. tap is its other
// probes.
func (p *inside) front(ctx context.Context, proc *target.Process, tap process, open frontOpener) {
	defer p.first.done(proc.PID)
	in, front, err := openIn(ctx, &p.first, proc.PID, open)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		p.probe(ctx, uint32(proc.PID), note.Probe{Detail: signal.DetailStamps, Reason: err.Error()})
		return
	}
	w := p.attach(ctx, proc, in, front.Probes())
	defer w.close()
	if q, ok := front.(engine.Requester); ok {
		p.requests(ctx, uint32(proc.PID), q.Requests)
	}
	p.first.done(proc.PID)
	if w.interp == nil {
		return
	}
	b := newBusy(w, p.opt.DetokenizeSample)
	look, check, busy := time.NewTicker(stateEvery), time.NewTicker(checkEvery), time.NewTicker(busyLook)
	defer look.Stop()
	defer check.Stop()
	defer busy.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.interp.Done():
			return
		case now := <-busy.C:
			if b != nil {
				_ = b.look(ctx, now) // the next look tries again
			}
			continue
		case <-check.C:
			w.refresh(ctx)
			if b != nil && b.closer != nil {
				b.closer.learn(w.places()) // plans may have new numbers
			}
		case <-look.C:
			w.tick(ctx)
		}
		if tap == nil {
			continue
		}
		// Receipts are needed until it is seen that messages are stamped, which depends
		// on the engine's statistics. If they cannot be put back they are tried again.
		if w.sees(signal.DetailStamps) {
			_ = tap.DetachReceipts()
		} else {
			_ = tap.AttachReceipts()
		}
	}
}

// sees reports whether a detail's probes are in place and each of its watched
// functions has called.
func (w *watching) sees(detail string) bool {
	hits, err := w.interp.Hits()
	if err != nil {
		return false
	}
	type caller struct {
		probe uint32
		code  uint64
	}
	called := make(map[caller]bool)
	for _, h := range hits {
		called[caller{h.Probe, h.Code}] = h.Count > 0
	}
	some := false
	for i, s := range w.interp.Report() {
		for k, x := range s.Watches {
			if cmp.Or(w.probes[i].Watches[k].Detail, w.probes[i].Detail) != detail {
				continue
			}
			if !s.Attached || !called[caller{s.Probe, x.Code}] {
				return false
			}
			some = true
		}
	}
	return some
}

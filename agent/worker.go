package agent

import (
	"context"
	"time"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// workers finds workers that are processes of their own, by kind of engine.
var workers = map[string]frontOpener{
	"vllm": func(in *python.Interp) (engine.Front, error) { return vllm.NewWorker(in) },
}

// worker looks into one worker until ctx ends or the process is gone.
func (p *inside) worker(ctx context.Context, proc *target.Process, open frontOpener) {
	defer p.first.done(proc.PID)
	work := p.gpuWork(proc)
	defer work.close()
	var w *watching
	look, check := time.NewTicker(stateEvery), time.NewTicker(checkEvery)
	defer look.Stop()
	defer check.Stop()
	for due := true; ; {
		if due {
			work.look(ctx)
		}
		due = false
		if w == nil && work.probes != nil {
			in, worker, err := openIn(ctx, &p.first, proc.PID, open)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				p.probe(ctx, uint32(proc.PID), note.Probe{Detail: signal.DetailMessages, Reason: err.Error()})
				return
			}
			w = p.attach(ctx, proc, in, worker.Probes())
			defer w.close()
			if w.interp == nil {
				return
			}
			work.govern(w.governor)
		}
		p.first.done(proc.PID)
		if w == nil && work.done {
			return // the driver could not be probed
		}
		var gone <-chan struct{}
		if w != nil {
			gone = w.interp.Done()
		}
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case <-check.C:
			if w != nil {
				w.refresh(ctx)
			}
		case <-look.C:
			if w != nil {
				w.tick(ctx)
			}
			due = true
		}
	}
}

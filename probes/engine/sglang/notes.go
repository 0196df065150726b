package sglang

import (
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
)

// Note reads a note about one of the engine's processes and hands over what it
// says. Notes of kinds that this build does not know say nothing.
func (d *Decoder) Note(r *event.Record, emit func(signal.Signal)) {
	var err error
	switch note.Kind(r.Note) {
	case note.KindConfig:
		err = d.configNote(r, emit)
	case note.KindState:
		err = d.stateNote(r, emit)
	default:
		d.stats.Other++
	}
	if err != nil {
		d.stats.Broken++
		d.problem = err
	}
}

// some makes a known value of one that is there.
func some[T any](p *T) signal.Opt[T] {
	if p == nil {
		return signal.Opt[T]{}
	}
	return signal.Some(*p)
}

// count is some for numbers that cannot be negative.
func count(p *int64) signal.Opt[int64] {
	if p == nil || *p < 0 {
		return signal.Opt[int64]{}
	}
	return signal.Some(*p)
}

func (d *Decoder) core(pid uint32) signal.Core {
	if c, ok := d.cores[pid]; ok {
		return c
	}
	return signal.Core{Engine: d.engine, PID: pid}
}

func (d *Decoder) configNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.Config](r)
	if err != nil {
		return err
	}
	emit(&signal.EngineConfig{
		At: signal.Mono(r.Time), Core: d.core(r.PID),
		Model: some(n.Model), MaxModelLen: count(n.MaxModelLen), MaxSeqs: count(n.MaxSeqs), MaxBatchedTokens: count(n.MaxBatchedTokens),
		BlockSize: count(n.BlockSize), Blocks: count(n.Blocks),
		TensorParallel: count(n.TensorParallel), PipelineParallel: count(n.PipelineParallel), DataParallel: count(n.DataParallel),
		PrefixCaching: some(n.PrefixCaching), ChunkedPrefill: some(n.ChunkedPrefill), AsyncScheduling: some(n.AsyncScheduling),
		LogStats: signal.Some(false), // it sends neither events nor statistics
		Policy:   some(n.Policy), SpecMethod: some(n.SpecMethod), SpecTokens: count(n.SpecTokens),
		KVConnector: some(n.KVConnector), KVRole: some(n.KVRole), LoRA: some(n.LoRA),
	})
	return nil
}

func (d *Decoder) stateNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.State](r)
	if err != nil {
		return err
	}
	emit(&signal.EngineState{
		At: signal.Mono(r.Time), Core: d.core(r.PID),
		Running: count(n.Running), Waiting: count(n.Waiting), Deferred: count(n.Deferred), FreeBlocks: count(n.FreeBlocks), Blocks: count(n.Blocks), Step: count(n.Step),
	})
	return nil
}

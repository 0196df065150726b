package engine

import (
	"inferspan/correlate/signal"
	"inferspan/probes/note"
)

// Known makes a known value of one that is there.
func Known[T any](p *T) signal.Opt[T] {
	if p == nil {
		return signal.Opt[T]{}
	}
	return signal.Some(*p)
}

// Count is Known for numbers that cannot be negative.
func Count(p *int64) signal.Opt[int64] {
	if p == nil || *p < 0 {
		return signal.Opt[int64]{}
	}
	return signal.Some(*p)
}

// ConfigSignal is what a note says of the configuration of a core.
func ConfigSignal(n *note.Config, at signal.Mono, core signal.Core) *signal.EngineConfig {
	return &signal.EngineConfig{
		At: at, Core: core,
		Model: Known(n.Model), MaxModelLen: Count(n.MaxModelLen), MaxSeqs: Count(n.MaxSeqs), MaxBatchedTokens: Count(n.MaxBatchedTokens),
		BlockSize: Count(n.BlockSize), Blocks: Count(n.Blocks),
		TensorParallel: Count(n.TensorParallel), PipelineParallel: Count(n.PipelineParallel), DataParallel: Count(n.DataParallel),
		PrefixCaching: Known(n.PrefixCaching), ChunkedPrefill: Known(n.ChunkedPrefill), AsyncScheduling: Known(n.AsyncScheduling),
		LogStats: Known(n.LogStats), Policy: Known(n.Policy), SpecMethod: Known(n.SpecMethod), SpecTokens: Count(n.SpecTokens),
		KVConnector: Known(n.KVConnector), KVRole: Known(n.KVRole), LoRA: Known(n.LoRA),
	}
}

package engine

import (
	"inferspan/correlate/signal"
	"inferspan/probes/note"
)

// ConfigSignal is what a note says of the configuration of a core.
func ConfigSignal(n *note.Config, at signal.Mono, core signal.Core) *signal.EngineConfig {
	return &signal.EngineConfig{
		At: at, Core: core,
		Model: signal.Known(n.Model), MaxModelLen: signal.Count(n.MaxModelLen), MaxSeqs: signal.Count(n.MaxSeqs), MaxBatchedTokens: signal.Count(n.MaxBatchedTokens),
		BlockSize: signal.Count(n.BlockSize), Blocks: signal.Count(n.Blocks),
		TensorParallel: signal.Count(n.TensorParallel), PipelineParallel: signal.Count(n.PipelineParallel), DataParallel: signal.Count(n.DataParallel),
		PrefixCaching: signal.Known(n.PrefixCaching), ChunkedPrefill: signal.Known(n.ChunkedPrefill), AsyncScheduling: signal.Known(n.AsyncScheduling),
		LogStats: signal.Known(n.LogStats), Policy: signal.Known(n.Policy), SpecMethod: signal.Known(n.SpecMethod), SpecTokens: signal.Count(n.SpecTokens),
		KVConnector: signal.Known(n.KVConnector), KVRole: signal.Known(n.KVRole), LoRA: signal.Known(n.LoRA),
	}
}

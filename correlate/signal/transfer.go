package signal

// KVTransfer: a request waited for KV blocks from another node
// (WAITING_FOR_REMOTE_KVS in vLLM). It comes when that is over, or given up.
type KVTransfer struct {
	Core  Core
	ID    string // RequestAdded.ID
	Start Mono   // when it began to wait for them, 0 if that was not seen
	End   Mono   // when it was done with that
	// Tokens of the blocks, where they are known by then: see Output.ExternalTokens.
	Tokens Opt[int64]
	Failed Opt[bool]
	// Exact says that Start and End are the engine's own. Otherwise Method says what
	// they are: "steps" the beginning of the step within which it began to wait, and
	// the end of the step that brought the blocks; "peek" when it was first and last
	// seen waiting.
	Exact  bool
	Method string
}

func (*KVTransfer) isSignal() {}

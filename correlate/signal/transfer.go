package signal

// KVTransfer: a request waited for KV blocks from another node
// (WAITING_FOR_REMOTE_KVS in vLLM). It comes when that is over, or given up.
type KVTransfer struct {
	Core   Core
	ID     string // RequestAdded.ID
	Start  Mono   // when it began to wait for them
	End    Mono   // when it was done with that
	Tokens Opt[int64]
	Failed Opt[bool]
	// Exact says that Start and End are the engine's own, or the steps in which the
	// state changed. Otherwise they are when it was first and last seen in the
	// state, and Method says by what, e.g. "peek".
	Exact  bool
	Method string
}

func (*KVTransfer) isSignal() {}

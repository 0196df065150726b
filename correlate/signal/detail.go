package signal

// Names of details, for ProbeChange.Probe.
const (
	DetailSteps      = "steps"       // Step
	DetailPeeks      = "peeks"       // EngineState, EngineConfig and RequestPeeked
	DetailStamps     = "stamps"      // Delivered with Stamped
	DetailTokenize   = "tokenize"    // Tokenized
	DetailDetokenize = "detokenize"  // Detokenized
	DetailTransfer   = "kv_transfer" // KVTransfer
)

package signal

// Names of details, for ProbeChange.Probe.
const (
	DetailSteps      = "steps"       // Step
	DetailState      = "state"       // EngineState and RequestPeeked
	DetailStamps     = "stamps"      // Delivered with Stamped
	DetailTokenize   = "tokenize"    // Tokenized
	DetailDetokenize = "detokenize"  // Detokenized
	DetailTransfer   = "kv_transfer" // KVTransfer
)

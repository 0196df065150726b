package signal

// Names of details, for ProbeChange.Probe.
const (
	DetailSteps      = "steps"       // Step
	DetailState      = "state"       // EngineState and RequestPeeked
	DetailTokenize   = "tokenize"    // Tokenized
	DetailDetokenize = "detokenize"  // Detokenized
	DetailTransfer   = "kv_transfer" // KVTransfer
)

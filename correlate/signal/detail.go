package signal

// Names of details, for ProbeChange.Probe.
const (
	DetailSteps      = "steps"       // Step
	DetailPeeks      = "peeks"       // EngineState, EngineConfig and RequestPeeked
	DetailStamps     = "stamps"      // Delivered with Stamped
	DetailTokenize   = "tokenize"    // Tokenized
	DetailDetokenize = "detokenize"  // Detokenized
	DetailArrivals   = "arrivals"    // RequestAdded of a core that is part of a program
	DetailTransfer   = "kv_transfer" // KVTransfer
)

package signal

// Tokenized: a front end turned text into tokens, in one call of the tokenizer.
type Tokenized struct {
	At     Mono // end of the call
	Engine EngineID
	PID    uint32 // the front end
	// ID is the request's external or response id where it is known, else "": the
	// request is found by the number of tokens and the order.
	ID       string
	Duration int64 // ns
	// Inputs is how many texts the call had (0 stands for 1), Tokens how many
	// tokens it gave in all. A call with several texts is shared out among its
	// requests by their prompt tokens.
	Inputs int
	Tokens Opt[int64]
}

// Detokenized: what turning tokens into text took in a front end. There are two
// kinds: of one request (ID is set), or of the front end as a whole (ID is ""),
// which gives the cost of a token from then on.
type Detokenized struct {
	At     Mono
	Engine EngineID
	PID    uint32
	// ID is the request's external, response or internal id.
	ID       string
	Duration int64 // ns: of the request since its last Detokenized, or of all calls in a window
	Tokens   int64 // tokens that Duration is for
	// Exact says that the calls themselves were measured; Method says how it was
	// worked out otherwise, in one word, e.g. "bracket" for the share of the time
	// that the front end took for a whole message.
	Exact  bool
	Method string
}

func (*Tokenized) isSignal()   {}
func (*Detokenized) isSignal() {}

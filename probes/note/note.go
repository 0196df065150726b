// Package note holds what the agent writes into the stream of records besides
// what comes from the kernel: what it read from an engine's memory, and what
// became of probes. A replay has them at the same places.
//
// A note is JSON, so that fields can be added. Its record has the process that it
// is about and when it was true. Notes have no texts and no token ids.
package note

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"

	"inferspan/bpf/event"
)

// Kind is the number of a kind of note.
type Kind uint32

// Kinds.
const (
	KindConfig   Kind = 1 // Config
	KindRequests Kind = 2 // Requests
	KindState    Kind = 3 // State
	KindProbe    Kind = 4 // Probe
	KindCost     Kind = 5 // Cost
	KindLook     Kind = 6 // Look
)

// Config is what an engine core was configured with. Fields that are nil could
// not be read, or the version has no such thing.
type Config struct {
	Model            *string `json:"model,omitempty"`
	MaxModelLen      *int64  `json:"max_model_len,omitempty"`
	MaxSeqs          *int64  `json:"max_seqs,omitempty"`
	MaxBatchedTokens *int64  `json:"max_batched_tokens,omitempty"`
	BlockSize        *int64  `json:"block_size,omitempty"`
	Blocks           *int64  `json:"blocks,omitempty"`
	TensorParallel   *int64  `json:"tensor_parallel,omitempty"`
	PipelineParallel *int64  `json:"pipeline_parallel,omitempty"`
	DataParallel     *int64  `json:"data_parallel,omitempty"`
	PrefixCaching    *bool   `json:"prefix_caching,omitempty"`
	ChunkedPrefill   *bool   `json:"chunked_prefill,omitempty"`
	AsyncScheduling  *bool   `json:"async_scheduling,omitempty"`
	LogStats         *bool   `json:"log_stats,omitempty"`
	Policy           *string `json:"policy,omitempty"`
	SpecMethod       *string `json:"spec_method,omitempty"` // "" is none
	SpecTokens       *int64  `json:"spec_tokens,omitempty"`
	KVConnector      *string `json:"kv_connector,omitempty"` // "" is none
	KVRole           *string `json:"kv_role,omitempty"`
	RemoteKVs        *int64  `json:"remote_kvs,omitempty"` // number of the status of requests that wait for KV blocks; nil without a connector
	LoRA             *bool   `json:"lora,omitempty"`
	// Missing says what could not be read, and why.
	Missing map[string]string `json:"missing,omitempty"`
}

// Complete takes what c lacks from another reading of the same core, and reports
// whether there was anything.
func (c *Config) Complete(other Config) bool {
	mine, more := reflect.ValueOf(c).Elem(), reflect.ValueOf(other)
	var took bool
	for i := range mine.NumField() {
		if f := mine.Field(i); f.Kind() == reflect.Pointer && f.IsNil() && !more.Field(i).IsNil() {
			f.Set(more.Field(i))
			took = true
		}
	}
	// What is missing is missing in both.
	missing := maps.Clone(c.Missing)
	maps.DeleteFunc(missing, func(name, _ string) bool { return other.Missing[name] == "" })
	if len(missing) == 0 {
		missing = nil
	}
	took = took || len(missing) < len(c.Missing)
	c.Missing = missing
	return took
}

// Requests are requests that a core had. Many come in several notes.
type Requests struct {
	Requests []Request `json:"requests"`
}

// Request is a request in a core or in a front end, in the engine's own words.
type Request struct {
	ID          string  `json:"id"`
	Client      *int64  `json:"client,omitempty"`
	Arrival     *int64  `json:"arrival,omitempty"` // wall time, ns
	Status      string  `json:"status,omitempty"`  // name of the member of the engine's enum
	Prompt      *int64  `json:"prompt,omitempty"`  // tokens
	Computed    *int64  `json:"computed,omitempty"`
	Output      *int64  `json:"output,omitempty"` // tokens as of the time of the note
	Cached      *int64  `json:"cached,omitempty"`
	Preemptions *int64  `json:"preemptions,omitempty"`
	Pooling     bool    `json:"pooling,omitempty"`
	TraceParent string  `json:"traceparent,omitempty"`
	Adapter     *string `json:"adapter,omitempty"` // name of the LoRA adapter asked for; "" is none
	Params      *Params `json:"params,omitempty"`
	Events      []Event `json:"events,omitempty"`
	Stream      *bool   `json:"stream,omitempty"` // the client gets outputs as they come
	Room        *int64  `json:"room,omitempty"`   // ties the two halves of a request that is prefilled elsewhere
	// Times are the stamps that the process keeps of the request, by the engine's names;
	// CLOCK_MONOTONIC, ns. One that is not set yet is 0.
	Times   map[string]int64 `json:"times,omitempty"`
	Missing []string         `json:"missing,omitempty"` // what could not be read
}

// Params are sampling parameters.
type Params struct {
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	TopK        *int64   `json:"top_k,omitempty"`
	MaxTokens   *int64   `json:"max_tokens,omitempty"`
	N           *int64   `json:"n,omitempty"`
	Logprobs    bool     `json:"logprobs,omitempty"`
	HasStop     bool     `json:"has_stop,omitempty"`
}

// Event is a state change that the engine stamped.
type Event struct {
	Type string `json:"type"` // name of the member of the engine's enum
	At   int64  `json:"at"`   // CLOCK_MONOTONIC, ns
}

// State is the state of a core.
type State struct {
	Running    *int64 `json:"running,omitempty"`
	Waiting    *int64 `json:"waiting,omitempty"`
	Deferred   *int64 `json:"deferred,omitempty"`
	FreeBlocks *int64 `json:"free_blocks,omitempty"`
	Blocks     *int64 `json:"blocks,omitempty"` // of the pool, with the one set aside
	Step       *int64 `json:"step,omitempty"`
	// What the core last published of its KV cache.
	UsedTokens *int64   `json:"used_tokens,omitempty"`
	KVUsage    *float64 `json:"kv_usage,omitempty"`
}

// Probe tells what became of the probes for a kind of detail in a process.
type Probe struct {
	Detail string `json:"detail"` // "steps"
	Active bool   `json:"active"`
	Reason string `json:"reason,omitempty"` // why not active, or not by the best source
	// Source is the one of several ways to the detail that is used, if there are several,
	// and Lacks what it does not tell.
	Source string `json:"source,omitempty"`
	Lacks  string `json:"lacks,omitempty"`
	// Less is what is left out for a while since it costs too much, as lists of names or in
	// words, and Why is the reason.
	Less []string `json:"less,omitempty"`
	Why  string   `json:"why,omitempty"`
	// Plans are the capture plans of the detail by the numbers in their records.
	Plans map[uint32]Plan `json:"plans,omitempty"`
	// Overhead is what measuring adds to each duration in captures, ns.
	Overhead int64 `json:"overhead,omitempty"`
}

// Look says that an engine core is going to be looked into: what is not known of requests
// that end until then was not seen yet.
type Look struct{}

// Cost is what the calls of a function took that is too busy to be looked at always:
// the latest of those that were timed.
type Cost struct {
	Detail string `json:"detail"` // that the function is of
	Calls  int64  `json:"calls"`
	Time   int64  `json:"time"` // ns in all, without what measuring adds
}

// Plan says how to read the captures of a plan in a process.
type Plan struct {
	Name    string            `json:"name"`
	Slots   []string          `json:"slots"`             // names by number
	Dropped map[string]string `json:"dropped,omitempty"` // slots that no capture has, with the reason
	// Level is 0 if it has all there is, else how much lighter it is than that.
	Level int `json:"level,omitempty"`
	// Behind: captures are taken when a message has been sent, after its record; else before.
	Behind bool `json:"behind,omitempty"`
}

// Put makes the record of a note. at is CLOCK_MONOTONIC, ns. The error is that of
// encoding, or that the note is larger than a record can be.
func Put(k Kind, pid uint32, at uint64, v any) (*event.Record, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding a note: %w", err)
	}
	if len(b) > event.MaxData {
		return nil, fmt.Errorf("encoding a note: %d bytes are over the limit of %d", len(b), event.MaxData)
	}
	return &event.Record{Header: event.Header{Time: at, Kind: event.KindNote, PID: pid}, Note: uint32(k), Data: b}, nil
}

// Get reads a note of the type that belongs to its kind.
func Get[T any](r *event.Record) (T, error) {
	var v T
	if err := json.Unmarshal(r.Data, &v); err != nil {
		return v, fmt.Errorf("reading a note of kind %d: %w", r.Note, err)
	}
	return v, nil
}

// PutRequests makes the records of requests, as many as are needed.
func PutRequests(pid uint32, at uint64, reqs []Request) ([]*event.Record, error) {
	return putParts(KindRequests, pid, at, reqs, func(part []Request, _ bool) any { return Requests{Requests: part} })
}

// putParts makes the records of notes that have a part of a list each; more says that
// others follow. An item that is too long for a record is an error.
func putParts[T any](k Kind, pid uint32, at uint64, items []T, note func(part []T, more bool) any) ([]*event.Record, error) {
	const aim = event.MaxData / 2
	var out []*event.Record
	from, size := 0, 0
	flush := func(to int) error {
		if to == from {
			return nil
		}
		r, err := Put(k, pid, at, note(items[from:to], to < len(items)))
		if err != nil {
			return err
		}
		out = append(out, r)
		from, size = to, 0
		return nil
	}
	for i := range items {
		b, err := json.Marshal(&items[i])
		if err != nil {
			return nil, fmt.Errorf("encoding a note: %w", err)
		}
		if size+len(b) > aim {
			if err := flush(i); err != nil {
				return nil, err
			}
		}
		size += len(b) + 1
	}
	return out, flush(len(items))
}

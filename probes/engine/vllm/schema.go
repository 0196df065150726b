package vllm

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

// field is a field of a message that the decoder reads. Fields of other names
// are fieldOther and skipped.
type field uint8

const (
	fieldOther field = iota
	// of EngineCoreRequest
	fieldRequestID // also of EngineCoreOutput
	fieldPrompt
	fieldPromptTokenIDs
	fieldMultiModal
	fieldPromptEmbeds
	fieldSamplingParams
	fieldPoolingParams
	fieldArrivalTime
	fieldClientIndex
	fieldTraceHeaders
	fieldExternalReqID
	fieldLoRA
	// of EngineCoreOutput
	fieldNewTokenIDs
	fieldNewLogprobs
	fieldPoolingOutput
	fieldFinishReason
	fieldStopReason
	fieldEvents
	fieldPrefillStats
	fieldNumCachedTokens
	// of EngineCoreOutputs
	fieldEngineIndex
	fieldOutputs
	fieldSchedulerStats
	fieldTimestamp
	fieldUtilityOutput
)

// Names of message classes and their fields, as in the engine's source.
const (
	classRequest = "EngineCoreRequest"
	classOutput  = "EngineCoreOutput"
	classOutputs = "EngineCoreOutputs"
	classFinish  = "FinishReason"
	classParams  = "SamplingParams"
)

var requestFields = map[string]field{
	"request_id": fieldRequestID, "prompt": fieldPrompt, "prompt_token_ids": fieldPromptTokenIDs, "prompt_embeds": fieldPromptEmbeds,
	"mm_features": fieldMultiModal, "mm_inputs": fieldMultiModal, "mm_kwargs": fieldMultiModal, "mm_hashes": fieldMultiModal, "mm_placeholders": fieldMultiModal,
	"sampling_params": fieldSamplingParams, "pooling_params": fieldPoolingParams, "arrival_time": fieldArrivalTime,
	"client_index": fieldClientIndex, "trace_headers": fieldTraceHeaders, "external_req_id": fieldExternalReqID,
	"lora_request": fieldLoRA,
}

var outputFields = map[string]field{
	"request_id": fieldRequestID, "new_token_ids": fieldNewTokenIDs, "new_logprobs": fieldNewLogprobs, "pooling_output": fieldPoolingOutput,
	"finish_reason": fieldFinishReason, "stop_reason": fieldStopReason, "events": fieldEvents,
	"prefill_stats": fieldPrefillStats, "num_cached_tokens": fieldNumCachedTokens,
}

var outputsFields = map[string]field{
	"engine_index": fieldEngineIndex, "outputs": fieldOutputs, "scheduler_stats": fieldSchedulerStats,
	"timestamp": fieldTimestamp, "utility_output": fieldUtilityOutput,
}

// Fields without which a message cannot be used.
var (
	requestNeeds = []string{"request_id", "prompt_token_ids", "sampling_params", "arrival_time"}
	outputNeeds  = []string{"request_id", "new_token_ids", "finish_reason"}
	outputsNeeds = []string{"outputs", "timestamp"}
)

// schema has the positions of fields in the messages of one engine.
type schema struct {
	live     bool // read from the engine's process, not from the table
	request  []field
	required int // elements that a request has at least
	output   []field
	outputs  []field
	finish   []finishReason // by value
	names    struct{ request, output, outputs []string }
}

// finishReason is a member of the engine's enum FinishReason.
type finishReason struct {
	kind signal.Finish
	word string
}

//go:embed table.json
var tableJSON []byte

// tableFile has the field order of the message classes by version. For each
// class only the versions are listed in which the order changed.
type tableFile struct {
	Versions []string
	Structs  map[string]map[string][]string
	Enums    map[string]map[string]map[int64]string
}

// aliases are versions whose classes equal those of a version in the table,
// which has a rebuilt release in their place.
var aliases = map[string]string{"0.11.0": "0.11.0.post2", "0.9.0": "0.9.0.1"}

// lookup gives the classes of a version; ok is false if the table lacks it.
func (t *tableFile) lookup(version string) (structs map[string][]string, enums map[string]map[int64]string, ok bool) {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
	if a, found := aliases[version]; found {
		version = a
	}
	at := slices.Index(t.Versions, version)
	if at < 0 {
		return nil, nil, false
	}
	structs, enums = map[string][]string{}, map[string]map[int64]string{}
	for name, byVersion := range t.Structs {
		structs[name] = latest(t.Versions[:at+1], byVersion)
	}
	for name, byVersion := range t.Enums {
		enums[name] = latest(t.Versions[:at+1], byVersion)
	}
	return structs, enums, true
}

// latest gives the value of the last of the versions that has one.
func latest[T any](versions []string, m map[string]T) T {
	for _, v := range slices.Backward(versions) {
		if x, ok := m[v]; ok {
			return x
		}
	}
	var none T
	return none
}

func loadTable() (*tableFile, error) {
	var t tableFile
	if err := json.Unmarshal(tableJSON, &t); err != nil {
		return nil, fmt.Errorf("parsing the table of message classes: %w", err)
	}
	return &t, nil
}

// newSchema finds where the fields are: in the facts read from the live engine,
// else in the table for exactly that version.
func newSchema(e *target.Engine) (*schema, error) {
	s := &schema{live: true}
	structs, members := e.Structs, e.Enums[classFinish]
	for _, c := range []string{classRequest, classOutput, classOutputs} {
		if len(structs[c]) == 0 {
			s.live = false
		}
	}
	if !s.live || len(members) == 0 {
		t, err := loadTable()
		if err != nil {
			return nil, err
		}
		known, enums, ok := t.lookup(e.Version)
		if !ok && !s.live {
			return nil, fmt.Errorf("vLLM version %q: field order not read from the process, and not in the table of %s to %s",
				e.Version, t.Versions[0], t.Versions[len(t.Versions)-1])
		}
		if !s.live {
			structs = known
		}
		if len(members) == 0 {
			members = enums[classFinish]
		}
	}
	for _, c := range []struct {
		class  string
		fields map[string]field
		needs  []string
		out    *[]field
		names  *[]string
	}{
		{classRequest, requestFields, requestNeeds, &s.request, &s.names.request},
		{classOutput, outputFields, outputNeeds, &s.output, &s.names.output},
		{classOutputs, outputsFields, outputsNeeds, &s.outputs, &s.names.outputs},
	} {
		names := structs[c.class]
		for _, n := range c.needs {
			if !slices.Contains(names, n) {
				return nil, fmt.Errorf("vLLM version %q: class %s has no field %s", e.Version, c.class, n)
			}
		}
		*c.names = names
		for i, n := range names {
			*c.out = append(*c.out, c.fields[n])
			if c.class == classRequest && slices.Contains(c.needs, n) {
				s.required = i + 1
			}
		}
	}
	for v, name := range members {
		if v < 0 || v > 255 {
			continue
		}
		for int64(len(s.finish)) <= v {
			s.finish = append(s.finish, finishReason{})
		}
		s.finish[v] = finishReason{finishKind(name), strings.ToLower(name)}
	}
	return s, nil
}

func finishKind(member string) signal.Finish {
	switch member {
	case "STOP":
		return signal.FinishStop
	case "LENGTH":
		return signal.FinishLength
	case "ABORT":
		return signal.FinishAbort
	case "ERROR":
		return signal.FinishError
	case "REPETITION":
		return signal.FinishRepetition
	}
	return signal.FinishOther
}

// externalIDs tells whether requests carry the front end's id beside the
// engine's own, which then has a random suffix.
func (s *schema) externalIDs() bool { return slices.Contains(s.request, fieldExternalReqID) }

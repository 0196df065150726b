package sglang

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fieldsJSON is made by testdata/fields.py from the sources of the versions.
//
//go:embed fields.json
var fieldsJSON []byte

// fieldTable is the fields of messages in their order, by class.
type fieldTable map[string][]string

// fieldsOf returns the table of a version; nil if there is none. In versions
// before the first in the table there is no MessagePack codec.
func fieldsOf(version string) (fieldTable, error) {
	var t struct {
		Lists    [][]string
		Versions map[string]map[string]int
	}
	if err := json.Unmarshal(fieldsJSON, &t); err != nil {
		return nil, fmt.Errorf("reading the table of fields: %w", err)
	}
	version, _, _ = strings.Cut(version, "+") // a build of the same source
	v, ok := t.Versions[version]
	if !ok {
		return nil, nil
	}
	out := fieldTable{}
	for _, class := range slices.Sorted(maps.Keys(v)) {
		i := v[class]
		if i < 0 || i >= len(t.Lists) {
			return nil, fmt.Errorf("reading the table of fields: %s of %s has no list", class, version)
		}
		out[class] = t.Lists[i]
	}
	return out, nil
}

// knownFields are the names that are looked for in the last bytes of a frame whose
// middle is missing.
var knownFields = func() map[string]bool {
	m := map[string]bool{}
	for name := range outputFields {
		m[name] = true
	}
	for _, name := range []string{"input_ids", "sampling_params", "stream", "return_logprob", "lora_name", "lora_path", "lora_id", "priority",
		"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank", "bootstrap_host", "bootstrap_port", "bootstrap_room",
		"received_time", "external_trace_header", "trace_context", "http_worker_ipc"} {
		m[name] = true
	}
	return m
}()

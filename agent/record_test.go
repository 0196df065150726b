package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/probes/target"
	"inferspan/recording"
)

// facts returns the facts in a recording.
func facts(t *testing.T, b []byte) []*target.Engine {
	t.Helper()
	r, err := recording.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var out []*target.Engine
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if it.Engine != nil {
			out = append(out, it.Engine)
		}
	}
}

func record(t *testing.T, redact bool, e *target.Engine) ([]byte, error) {
	t.Helper()
	var b bytes.Buffer
	w, err := recording.NewWriter(&b, recording.Meta{Redacted: redact})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRecorder(w, redact)
	_ = r.Engine(e) // Record says the same
	err = r.Record(&event.Record{Header: event.Header{Kind: event.KindClock, Time: 1}, Wall: 1})
	if cerr := w.Close(); cerr != nil {
		t.Fatal(cerr)
	}
	return b.Bytes(), err
}

func TestRecorderRedactsFacts(t *testing.T) {
	const secret = "/home/ann"
	e := &target.Engine{
		ID: 1, Kind: "vllm", Version: "0.32.0", Model: secret + "/models/llm", ServedNames: []string{"llm"}, Tokenizer: secret, HostID: secret,
		Problems: []string{"reading " + secret},
		Processes: []target.Process{{
			PID: 7, Role: target.RoleCore, Cmdline: []string{secret}, ResourceEnv: secret, UDS: secret,
			Python: target.Python{Version: "3.12.1", Path: secret, Problem: secret}, ZMQ: &target.Library{Path: secret, MapFile: secret},
		}},
	}
	b, err := record(t, true, e)
	if err != nil {
		t.Fatal(err)
	}
	got := facts(t, b)
	if len(got) != 1 || got[0].Model != "llm" || got[0].Processes[0].Python.Version != "3.12.1" {
		t.Fatalf("facts %+v", got)
	}
	text, err := json.Marshal(got[0])
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(secret)) {
		t.Errorf("%q is in the facts: %s", secret, text)
	}
	if e.Model != secret+"/models/llm" || e.Processes[0].Cmdline == nil {
		t.Error("the caller's facts were changed")
	}
}

// What cannot be redacted must not be recorded in part either.
func TestRecorderWithoutRedactor(t *testing.T) {
	e := &target.Engine{ID: 1, Kind: "unheard-of"}
	if _, err := record(t, true, e); err == nil || !strings.Contains(err.Error(), "redact") {
		t.Errorf("got %v", err)
	}
	if b, err := record(t, false, e); err != nil || len(facts(t, b)) != 1 {
		t.Errorf("without redaction: %v", err)
	}
}

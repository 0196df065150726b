package vllmtest

import (
	"encoding/hex"
	"fmt"

	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// Synthetic is one request encoded by the classes of one engine version: it is
// added, gets two outputs, and is then aborted.
type Synthetic struct {
	Version string
	Engine  *target.Engine
	Records []event.Record
	Expect  Expect
}

// Expect has the values that went into the messages. Times are in seconds.
type Expect struct {
	RequestID    string  `json:"request_id"`
	PromptTokens int64   `json:"prompt_tokens"`
	Arrival      float64 `json:"arrival_time"`
	Temperature  float64 `json:"temperature"`
	TopP         float64 `json:"top_p"`
	MaxTokens    int64   `json:"max_tokens"`
	Queued       float64 `json:"queued"`
	Scheduled    float64 `json:"scheduled"`
	Stamp1       float64 `json:"ts1"`
	Stamp2       float64 `json:"ts2"`
	FinishReason int64   `json:"finish_reason"`
	StopReason   string  `json:"stop_reason"`
	CachedTokens *int64  `json:"cached_tokens"`
	KVUsage      float64 `json:"kv_usage"`
	Running      int64   `json:"running"`
	Waiting      int64   `json:"waiting"`
}

// Process ids and sockets of the synthetic messages.
const (
	SyntheticCore   = 2
	SyntheticServer = 1
	syntheticIn     = 0x100
	syntheticOut    = 0x200
)

// AllSynthetic returns the synthetic messages of all versions, oldest version first.
func AllSynthetic() ([]Synthetic, error) {
	var stored []struct {
		Version  string   `json:"version"`
		Request  []string `json:"request_frames"`
		Outputs1 []string `json:"outputs1_frames"`
		Outputs2 []string `json:"outputs2_frames"`
		Abort    []string `json:"abort_frames"`
		Expect   Expect   `json:"expect"`
	}
	if err := unpack("synthetic", &stored); err != nil {
		return nil, err
	}
	var out []Synthetic
	for _, v := range stored {
		s := Synthetic{Version: v.Version, Engine: SyntheticEngine(v.Version), Expect: v.Expect}
		t := int64(v.Expect.Queued*1e9) - 200_000
		s.Records = append(s.Records, Clock(t))
		add := func(t int64, dir uint8, sock uint64, frames []string) error {
			for i, f := range frames {
				data, err := hex.DecodeString(f)
				if err != nil {
					return fmt.Errorf("synthetic %s: %w", v.Version, err)
				}
				more := i < len(frames)-1
				s.Records = append(s.Records, Frame(t, SyntheticCore, SyntheticCore, sock, dir, i, more, data))
				if dir == event.FrameSend && i == 0 {
					s.Records = append(s.Records, Receipt(t+10*receiveDelay, SyntheticServer, 1, more, data))
				}
			}
			return nil
		}
		for _, m := range []struct {
			t      int64
			dir    uint8
			sock   uint64
			frames []string
		}{
			{t, event.FrameRecv, syntheticIn, v.Request[1:]}, // frame 0 is the address
			{int64(v.Expect.Stamp1*1e9) + 50_000, event.FrameSend, syntheticOut, v.Outputs1},
			{int64(v.Expect.Stamp2*1e9) + 50_000, event.FrameSend, syntheticOut, v.Outputs2},
			{int64(v.Expect.Stamp2*1e9) + 500_000, event.FrameRecv, syntheticIn, v.Abort[1:]},
		} {
			if err := add(m.t, m.dir, m.sock, m.frames); err != nil {
				return nil, err
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// SyntheticEngine gives the facts of an engine with one front end and one core.
func SyntheticEngine(version string) *target.Engine {
	return &target.Engine{ID: EngineID, Kind: "vllm", Version: version, Model: "tiny", ServedNames: []string{"tiny"}, Processes: []target.Process{
		{PID: SyntheticServer, NSPID: SyntheticServer, Role: target.RoleAPIServer},
		{PID: SyntheticCore, NSPID: SyntheticCore, PPID: SyntheticServer, Role: target.RoleCore},
	}}
}

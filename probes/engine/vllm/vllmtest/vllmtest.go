// Package vllmtest gives tests the messages of real vLLM engines as kernel
// records: what the ring would have carried, together with the spans that the
// engine itself exported for the same requests.
package vllmtest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

//go:embed testdata/*.gz
var files embed.FS

// Dump is the stored form of a run: the frames that each process sent.
type Dump struct {
	Version   string        `json:"version"`
	Offline   bool          `json:"offline,omitempty"`
	Processes []DumpProcess `json:"processes"`
	Clients   []DumpClient  `json:"clients"`
	Frames    []DumpFrame   `json:"frames"`
	Spans     []Span        `json:"spans,omitempty"`
}

// DumpProcess is a process that sent frames.
type DumpProcess struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
}

// DumpClient has the endpoints of one front end, -1 if no frame names them.
type DumpClient struct {
	Input  int `json:"in"`
	Output int `json:"out"`
}

// DumpFrame is one frame as it was sent.
type DumpFrame struct {
	Time  int64  `json:"t"` // CLOCK_MONOTONIC, ns
	PID   int    `json:"p"`
	TID   int    `json:"i"`
	Type  string `json:"y"`           // type of the sending socket
	Input bool   `json:"n,omitempty"` // sent by the thread that reads requests
	EP    int    `json:"e"`           // endpoint
	Sock  uint64 `json:"s"`
	More  bool   `json:"m,omitempty"`
	Data  string `json:"x"` // hex
}

// Span is a llm_request span that the engine exported.
type Span struct {
	Start   int64              `json:"start"` // ns since the epoch
	End     int64              `json:"end"`
	Numbers map[string]float64 `json:"numbers"`
	Strings map[string]string  `json:"strings"`
}

// Run is a run of a real engine.
type Run struct {
	Name    string
	Engine  *target.Engine // without live facts: decoders use their table
	Records []event.Record // in time order; the first one ties the clocks together
	Spans   []Span         // what the engine exported, nil if its tracing was off
}

// WallOffset is CLOCK_REALTIME minus CLOCK_MONOTONIC in ns in all runs, which
// were made one after the other on one host. The dumps do not hold it: it is
// the one value, within 0.4 ms, with which no request is sent before it arrived
// and no last output is received before it was sent.
const WallOffset = 1795954383_933_750_000

// EngineID is the id of the engine in every run.
const EngineID signal.EngineID = 1

// receiveDelay is the time in ns from a frame's sending to its receipt in these
// records. The dumps hold only when frames were sent.
const receiveDelay = 20_000

// partDelay is the time in ns from the receipt of a frame to that of the next
// one of its message.
const partDelay = 1_000

// Names returns the names of the runs, sorted.
func Names() []string {
	dir, err := files.ReadDir("testdata")
	if err != nil {
		panic(err)
	}
	var out []string
	for _, f := range dir {
		if name := strings.TrimSuffix(f.Name(), ".json.gz"); name != "synthetic" {
			out = append(out, name)
		}
	}
	return out
}

// Load builds the records of a run.
func Load(name string) (*Run, error) {
	var d Dump
	if err := unpack(name, &d); err != nil {
		return nil, err
	}
	return d.run(name)
}

func unpack(name string, v any) error {
	b, err := files.ReadFile("testdata/" + name + ".json.gz")
	if err != nil {
		return fmt.Errorf("reading run %q: %w", name, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("unpacking run %q: %w", name, err)
	}
	if err := json.NewDecoder(z).Decode(v); err != nil {
		return fmt.Errorf("parsing run %q: %w", name, err)
	}
	return nil
}

// input is a socket on which a core receives.
type input struct {
	pid  int
	sock uint64
	tid  int
}

func (d *Dump) run(name string) (*Run, error) {
	r := &Run{Name: name, Spans: d.Spans, Engine: d.engine()}
	role := map[int]target.Role{}
	for _, p := range r.Engine.Processes {
		role[p.PID] = p.Role
	}
	// A core's DEALER socket and the front end's ROUTER socket share an endpoint.
	inputs := map[int]input{}
	for _, f := range d.Frames {
		if role[f.PID] == target.RoleCore && f.Type == "DEALER" {
			inputs[f.EP] = input{f.PID, f.Sock, f.TID}
		}
	}
	var frontEnds []int // by client index
	for _, c := range d.Clients {
		for _, f := range d.Frames {
			if f.Type == "ROUTER" && f.EP == c.Input {
				frontEnds = append(frontEnds, f.PID)
				break
			}
		}
	}
	type socket struct {
		pid  int
		sock uint64
	}
	parts := map[socket][]DumpFrame{} // frames of unfinished messages
	for _, f := range d.Frames {
		k := socket{f.PID, f.Sock}
		parts[k] = append(parts[k], f)
		if f.More {
			continue
		}
		message := parts[k]
		delete(parts, k)
		// A message arrives as a whole, after its last frame was sent.
		arrival := f.Time + receiveDelay
		for n, f := range message {
			data, err := hex.DecodeString(f.Data)
			if err != nil {
				return nil, fmt.Errorf("run %q: %w", name, err)
			}
			at := arrival + int64(n)*partDelay
			switch {
			case role[f.PID] == target.RoleCore:
				r.Records = append(r.Records, Frame(f.Time, f.PID, f.TID, f.Sock, event.FrameSend, n, f.More, data))
				if f.Type == "PUSH" && n == 0 {
					client := slices.IndexFunc(d.Clients, func(c DumpClient) bool { return c.Output == f.EP })
					if client < 0 || client >= len(frontEnds) {
						return nil, fmt.Errorf("run %q: no front end for the socket %d", name, f.Sock)
					}
					r.Records = append(r.Records, Receipt(at+10*receiveDelay, frontEnds[client], uint64(client)+1, f.More, data))
				}
			case f.Type == "ROUTER" && n > 0: // frame 0 is the address, which does not arrive
				if in, ok := inputs[f.EP]; ok {
					r.Records = append(r.Records, Frame(at, in.pid, in.tid, in.sock, event.FrameRecv, n-1, f.More, data))
				}
			}
		}
	}
	if len(r.Records) == 0 {
		return nil, fmt.Errorf("run %q has no records", r.Name)
	}
	slices.SortStableFunc(r.Records, func(a, b event.Record) int { return cmp.Compare(a.Time, b.Time) })
	r.Records = slices.Insert(r.Records, 0, Clock(int64(r.Records[0].Time)))
	return r, nil
}

// Clock makes the record that ties the clocks together.
func Clock(t int64) event.Record {
	return event.Record{Header: event.Header{Time: uint64(t), Kind: event.KindClock}, Wall: uint64(t) + WallOffset}
}

// engine makes the facts of the run.
func (d *Dump) engine() *target.Engine {
	e := &target.Engine{ID: EngineID, Kind: "vllm", Version: d.Version, Model: "tiny", ServedNames: []string{"tiny"},
		// The engine's own spans of these runs carry n, temperature and top_p
		// with these values where the message leaves them out.
		Defaults: map[string]map[string]any{"SamplingParams": {"n": 1.0, "temperature": 1.0, "top_p": 1.0}}}
	servers := 0
	for _, p := range d.Processes {
		t := target.Process{PID: p.PID, NSPID: p.PID, Comm: p.Comm}
		switch {
		case strings.HasPrefix(p.Comm, "VLLM::EngineCor"):
			t.Role = target.RoleCore
		case d.Offline:
			t.Role = target.RoleOffline
		case strings.HasPrefix(p.Comm, "VLLM::APIServer"):
			t.Role, t.Index = target.RoleAPIServer, servers
			servers++
		case len(d.Clients) > 1:
			t.Role = target.RoleLauncher
		default:
			t.Role = target.RoleAPIServer
		}
		e.Processes = append(e.Processes, t)
	}
	return e
}

// Frame makes the record of a frame that fits into one.
func Frame(t int64, pid, tid int, sock uint64, dir uint8, part int, more bool, data []byte) event.Record {
	r := event.Record{Header: event.Header{Time: uint64(t), Kind: event.KindFrame, PID: uint32(pid), TID: uint32(tid)},
		Frame: event.Frame{Sock: sock, ID: uint64(t), Size: uint32(len(data)), Part: uint16(part), Dir: dir}, Data: data}
	if more {
		r.Frame.Flags |= event.FrameMore
	}
	if part > 1 && len(data) > 64 {
		r.Data = data[:64]
	}
	return r
}

// Receipt makes the record of the receipt of a message's first frame in a front
// end; the kernel side makes none for later frames.
func Receipt(t int64, pid int, sock uint64, more bool, data []byte) event.Record {
	r := Frame(t, pid, pid, sock, event.FrameRecv, 0, more, nil)
	r.Frame.Off = uint32(max(0, len(data)-128))
	r.Frame.Size = uint32(len(data))
	r.Frame.Flags |= event.FrameReceipt
	r.Data = data[max(0, len(data)-128):]
	return r
}

// Sizes of the kernel side: a long frame keeps its first and its last bytes.
const (
	chunkSize = event.MaxData
	maxFrame  = 8 * chunkSize
)

// Chunks makes the records of a frame of any length, as the kernel side cuts it.
func Chunks(t int64, pid, tid int, sock uint64, dir uint8, part int, more bool, data []byte) []event.Record {
	if len(data) <= chunkSize {
		return []event.Record{Frame(t, pid, tid, sock, dir, part, more, data)}
	}
	flags, head := uint8(0), len(data)
	if len(data) > maxFrame {
		flags, head = event.FrameCut, maxFrame-chunkSize
	}
	var out []event.Record
	add := func(off, end int) {
		r := Frame(t, pid, tid, sock, dir, part, more, data[off:end])
		r.Frame.Size, r.Frame.Off = uint32(len(data)), uint32(off)
		r.Frame.Flags |= flags
		out = append(out, r)
	}
	for off := 0; off < head; off += chunkSize {
		add(off, min(off+chunkSize, head))
	}
	if head < len(data) {
		add(len(data)-chunkSize, len(data))
	}
	return out
}

package sglang

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
)

// traced is a span of a stage, or an event, that the engine itself traced.
type traced struct {
	ID, Name, Event, Mode string
	Start, End            int64 // ns since the epoch
	Round, Size           *int64
	found                 bool
}

// TestTraced compares the captures of a run of SGLang 0.5.23 with what its own tracer
// sent meanwhile: chunks of prompts, a request that was put back, one that ends with its
// first output, and such as do not stream. testdata has both.
func TestTraced(t *testing.T) {
	data, err := os.ReadFile("testdata/captures-0.5.23.json")
	if err != nil {
		t.Fatal(err)
	}
	var run struct {
		Plans   map[uint32]note.Plan
		Records []event.Record
	}
	if err := json.Unmarshal(data, &run); err != nil {
		t.Fatal(err)
	}
	if data, err = os.ReadFile("testdata/traced-0.5.23.jsonl"); err != nil {
		t.Fatal(err)
	}
	var own []*traced
	for d := json.NewDecoder(bytes.NewReader(data)); d.More(); {
		var x traced
		if err := d.Decode(&x); err != nil {
			t.Fatal(err)
		}
		own = append(own, &x)
	}
	c := NewCaptures(1, "none")
	for n, p := range run.Plans {
		c.Plan(n, p)
	}
	type seen struct {
		traced
		method string
	}
	var all []seen
	complete := map[string]int64{}
	var unseen []string
	for i := range run.Records {
		err := c.Capture(&run.Records[i], func(s signal.Signal) {
			switch s := s.(type) {
			case *signal.Stage:
				x := seen{traced{ID: s.ID, Name: s.Name, Start: int64(s.Start), End: int64(s.End)}, s.Method}
				if s.Round.OK {
					n := s.Round.V
					x.Round = &n
				}
				all = append(all, x)
			case *signal.Mark:
				switch s.Name {
				case signal.MarkComplete:
					complete[s.ID] = int64(s.At)
					return
				case signal.MarkUnseen:
					unseen = append(unseen, s.ID)
					return
				}
				x := seen{traced{ID: s.ID, Event: s.Name, Start: int64(s.At), Mode: s.Mode}, s.Method}
				if s.Size.OK {
					n := s.Size.V
					x.Size = &n
				}
				all = append(all, x)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The tracer converts to wall time by an offset that differs a little between requests.
	offset := map[string]int64{}
	for _, x := range all {
		for _, o := range own {
			if o.ID == x.ID && o.Name == x.Name && x.Name == stageProcess {
				offset[x.ID] = o.Start - x.Start
			}
		}
	}
	const (
		same   = 20_000    // ns, of two processes' offsets
		launch = 3_000_000 // from putting a batch together to its launch
		ending = 5_000_000 // the tracer ends a thread by a clock read of its own
	)
	within := func(d, limit int64) bool { return d >= -same && d <= limit }
	for _, x := range all {
		match := false
		start := int64(same)
		if x.method != "" {
			start = launch
		}
		end, to := x.End, int64(same)
		if x.Event == "" && end == 0 {
			end, to = complete[x.ID], ending
		}
		for _, o := range own {
			if o.found || o.ID != x.ID || o.Name != x.Name || o.Event != x.Event || !within(x.Start+offset[x.ID]-o.Start, start) {
				continue
			}
			if x.Event == "" && !within(o.End-end-offset[x.ID], to) {
				continue
			}
			if x.Round != nil && (o.Round == nil || *o.Round != *x.Round) || x.Event != "" && x.Mode != o.Mode || x.Size != nil && *x.Size != *o.Size {
				continue
			}
			o.found, match = true, true
			break
		}
		if !match {
			t.Errorf("%s %s%s from %d to %d (%s) is none of those traced", x.ID, x.Name, x.Event, x.Start+offset[x.ID], x.End+offset[x.ID], x.method)
		}
	}
	lost := map[string]int{}
	for _, o := range own {
		if !o.found {
			lost[o.ID+" "+o.Name+o.Event]++
		}
	}
	// Nothing shows the last but one result of a request that does not stream.
	if len(lost) != 1 || lost["r4n decode_loop"] != 2 || len(unseen) != 1 || unseen[0] != "r4n" {
		t.Errorf("traced, and not found: %v, said to be unseen: %v", lost, unseen)
	}
	if len(all) < 80 || len(own) < 80 {
		t.Errorf("%d seen, %d traced", len(all), len(own))
	}
	for _, name := range []string{stageChunk, stageAPIDispatch, signal.MarkRetract} {
		if !strings.Contains(string(data), name) {
			t.Errorf("nothing traced is a %s", name)
		}
	}
}

package correlate

import (
	"fmt"

	"inferspan/correlate/signal"
)

// Processes of the SGLang engine in scripts.
const (
	tokPID  = 13729
	dpcPID  = 13800
	schPID  = 13885
	sch1PID = 13886
	hostID  = "3d1219c7c4c5404aaa1f6d2a48adfda4"
)

var (
	sglCore     = signal.Core{Engine: 1, Index: 0, PID: schPID}
	coreUnknown = signal.Core{Engine: 1, Index: signal.CoreUnknown}
)

// sglang is a script of an SGLang engine. Times are in ms.
type sglang struct {
	script
	batch int64
}

type engineEdit func(*signal.Engine)

func newSGLang(edit ...engineEdit) *sglang {
	s := &sglang{}
	s.put(&signal.Clock{At: 1, Wall: wallOff + 1})
	proc := func(pid uint32, role string) signal.Process {
		return signal.Process{PID: pid, Role: role, NSPID: pid, HostID: hostID, Resource: []signal.KV{{Key: "process.pid", Value: int64(pid)}}}
	}
	e := &signal.Engine{At: 1, ID: 1, Kind: "sglang", Version: "0.5.23", Model: "tiny", PDRole: "none",
		Resource: []signal.KV{{Key: "service.name", Value: "sglang"}},
		Process:  []signal.Process{proc(tokPID, "api_server"), proc(schPID, "engine_core")}}
	e.Process[1].TensorRank, e.Process[1].PipelineRank = signal.Some[int64](0), signal.Some[int64](0)
	for _, f := range edit {
		f(e)
	}
	s.put(e)
	return s
}

func withProcess(p signal.Process) engineEdit {
	return func(e *signal.Engine) { e.Process = append(e.Process, p) }
}

func withRole(role string) engineEdit { return func(e *signal.Engine) { e.PDRole = role } }

func (s *sglang) times(t float64, id string, created, dispatched, first, finished float64) *sglang {
	s.put(&signal.RequestTimes{At: at(t), Engine: 1, PID: tokPID, ID: id, Created: at(created), Dispatched: at(dispatched), First: at(first), Finished: at(finished)})
	return s
}

type stageEdit func(*signal.Stage)

func round(n int64) stageEdit      { return func(s *signal.Stage) { s.Round = signal.Some(n) } }
func again(s *signal.Stage)        { s.Retract = true }
func method(m string) stageEdit    { return func(s *signal.Stage) { s.Method = m } }
func drafts(n int64) stageEdit     { return func(s *signal.Stage) { s.Drafts = signal.Some(n) } }
func microBatch(n int64) stageEdit { return func(s *signal.Stage) { s.MicroBatch = signal.Some(n) } }

func (s *sglang) stage(pid uint32, id, name string, from, to float64, edit ...stageEdit) *sglang {
	x := &signal.Stage{At: at(max(from, to)), Engine: 1, PID: pid, ID: id, Name: name, Start: at(from), End: at(to)}
	for _, f := range edit {
		f(x)
	}
	s.put(x)
	return s
}

func (s *sglang) mark(pid uint32, id, name string, t float64, mode string, size int64) *sglang {
	s.batch++
	m := &signal.Mark{At: at(t), Engine: 1, PID: pid, ID: id, Name: name}
	if name == signal.MarkSchedule {
		m.Batch, m.Size, m.Mode = signal.Some(s.batch), signal.Some(size), mode
	}
	s.put(m)
	return s
}

func (s *sglang) added(t float64, id string, edit ...func(*signal.RequestAdded)) *sglang {
	a := &signal.RequestAdded{At: at(t), Core: sglCore, ID: id, ExternalID: id, ResponseID: id, PID: tokPID, Client: -1, Known: true, PromptTokens: signal.Some[int64](10),
		Param: signal.Param{Temperature: signal.Some(1.0), TopP: signal.Some(1.0), TopK: signal.Some[int64](-1), MaxTokens: signal.Some[int64](4), N: signal.Some[int64](1)}}
	for _, f := range edit {
		f(a)
	}
	s.put(a)
	return s
}

// out sends an output of n tokens, from a core.
func (s *sglang) out(t float64, id string, n int, edit ...outEdit) *sglang {
	o := signal.Output{ID: []byte(id), NumTokens: n, CachedTokens: signal.Some[int64](0), PromptTokens: signal.Some[int64](10)}
	for _, f := range edit {
		f(&o)
	}
	s.put(&signal.StepOutput{At: at(t), Core: sglCore, Client: -1, Outputs: []signal.Output{o}})
	return s
}

// chat is a request of n tokens that nothing disturbs, beginning at t.
func (s *sglang) chat(t float64, conn uint64, id string, n int) *sglang {
	s.begin(t, conn, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID })
	s.engineRequest(t, id, n)
	s.endHTTP(t+12+10*float64(n), conn, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
		e.Exchange.PID = tokPID
		e.Model, e.FinishReasons = signal.Some("tiny"), []string{"length"}
		e.InputTokens, e.OutputTokens = signal.Some[int64](10), signal.Some(int64(n))
	})
	return s
}

// engineRequest is what the engine does for such a request.
func (s *sglang) engineRequest(t float64, id string, n int) *sglang {
	s.stage(tokPID, id, "tokenize", t+1, t+2)
	s.added(t+2.5, id)
	s.stage(tokPID, id, "api_server_dispatch", t+2.2, t+2.6)
	s.times(t+2.6, id, t+1, t+2.6, 0, 0)
	s.stage(schPID, id, "request_process", t+3, t+3.5)
	s.stage(schPID, id, "prefill_waiting", t+3.5, t+4)
	s.mark(schPID, id, signal.MarkSchedule, t+4.1, "prefill", 1)
	s.stage(schPID, id, "prefill_forward", t+4, t+10)
	s.out(t+10.2, id, 1)
	s.times(t+10.5, id, 0, 0, t+10.5, 0)
	last := t + 10
	for i := range n - 1 {
		now := t + 20 + 10*float64(i)
		if i == 0 {
			s.stage(schPID, id, "decode_waiting", last, last+0.5)
			last += 0.5
		}
		s.mark(schPID, id, signal.MarkSchedule, last, "decode", 2)
		s.stage(schPID, id, "decode_loop", last, now, round(int64(i)))
		last = now
		var end outEdit = func(*signal.Output) {}
		if i == n-2 {
			s.stage(schPID, id, "decode_forward", t+10.5, now+0.1)
			s.mark(schPID, id, signal.MarkComplete, now+0.1, "", 0)
			end = finished(signal.FinishLength, "length")
		}
		s.out(now+0.2, id, 1, end)
	}
	return s.times(last+0.6, id, 0, 0, 0, last+0.6)
}

// shape writes a tree as a text: names in order, indented by depth.
func shape(spans []string, depth []int) string {
	text := ""
	for i := range spans {
		text += fmt.Sprintf("%*s%s\n", 2*depth[i], "", spans[i])
	}
	return text
}

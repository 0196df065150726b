// Package agent joins the parts into what the commands run: a live run that
// attaches to an engine, and a replay of a recording. Both feed one Pipeline.
package agent

import (
	"sync"

	"inferspan/bpf/event"
	"inferspan/correlate"
	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/probes/decode"
	"inferspan/probes/host"
	"inferspan/probes/target"
	"inferspan/probes/tokenizer"
)

// Pipeline turns records and facts into span trees and metrics. One goroutine
// feeds it; Metrics may be called from any.
type Pipeline struct {
	mu     sync.Mutex
	dec    *decode.Decoder
	cor    *correlate.Correlator
	tokens *tokenizer.Table // nil: token texts are not known
	out    func(*trace.Tree)
	put    func(signal.Signal) // feeds the correlator
	last   signal.Mono         // time of the latest record
	kernel []signal.LossCount  // totals of the latest loss record
	steps  uint64
	report capabilityReport
	caps   []metric.Family // of report, nil if none was asked for
}

// Options of a pipeline.
type Options struct {
	Precision  int              // of vLLM's spans. 0: engine requests only, 1: stages, 2: events per step
	TraceLevel signal.Opt[int]  // of SGLang's spans: 0 to 4, as its own tracing has them; unset: the default
	Content    correlate.Policy // what becomes of prompts and completions
	EventLimit int              // span events kept per span, 0: the default
	ServerKind bool             // entry spans are of kind SERVER
	Steps      int              // scheduler steps on requests: 0: none, 1: references, 2: and spans of prefill chunks
	// StepRecords has tree called for each scheduler step, too: with a tree of that
	// step and no spans.
	StepRecords bool
}

// NewPipeline makes a pipeline that calls tree for each finished request, from
// the goroutine that feeds it.
func NewPipeline(o Options, tree func(*trace.Tree)) *Pipeline {
	p := &Pipeline{out: tree}
	p.dec = decode.New(decode.Options{
		Content: o.Content != correlate.ContentNone,
		Tokens:  o.Precision >= 2,
	})
	co := correlate.NewOptions()
	co.Precision, co.Content, co.ServerKind = o.Precision, o.Content, o.ServerKind
	co.Steps, co.StepRecords = o.Steps, o.StepRecords
	if o.TraceLevel.OK {
		co.TraceLevel = o.TraceLevel.V
	}
	if o.EventLimit > 0 {
		co.EventLimit = o.EventLimit
	}
	co.TokenText = func(id int64) (string, bool) {
		if p.tokens == nil {
			return "", false
		}
		return p.tokens.Text(id)
	}
	p.cor = correlate.New(co)
	p.put = func(s signal.Signal) {
		switch s := s.(type) {
		case *signal.StepOutput:
			p.steps++
		case *signal.ProbeChange:
			if p.report.change(s) {
				p.caps = p.report.families()
			}
		}
		p.cor.Put(s, p.out)
	}
	return p
}

// SetTraceLevel changes Options.TraceLevel for the requests that begin from now on,
// and reports whether there is such a level. It may be called at any time, from any
// goroutine.
func (p *Pipeline) SetTraceLevel(level int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cor.SetTraceLevel(level)
}

// Engine announces an engine, or one that is known with more processes. The error says that its messages cannot be read.
func (p *Pipeline) Engine(e *target.Engine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report.engine != nil && p.report.engine.ID == e.ID {
		p.report.engine = e
		p.caps = p.report.families()
	}
	return p.dec.Engine(e, p.put)
}

// Tokenizer gives the table for token texts.
func (p *Pipeline) Tokenizer(t *tokenizer.Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = t
}

// Record feeds one record. It never fails.
func (p *Pipeline) Record(r *event.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := signal.Mono(r.Time); t > p.last {
		p.last = t
	}
	if r.Kind == event.KindLoss {
		p.kernel = decode.KernelLosses(nil, r.Lost)
	}
	p.dec.Record(r, p.put)
	return nil
}

// Detach ends the run: requests in flight are handed over with what is known.
func (p *Pipeline) Detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dec.Detach(p.last, p.put)
}

// Metrics returns the state of all metrics.
func (p *Pipeline) Metrics() metric.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.cor.Metrics()
	m.Families = append(m.Families, p.caps...)
	return m
}

// Notes returns what a reader of the results should know: details that were lost
// on the way, and why.
func (p *Pipeline) Notes() []correlate.Note {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cor.Notes()
}

// GPUs returns what was seen of GPUs, and of the energy of engines.
func (p *Pipeline) GPUs() ([]correlate.GPU, []correlate.EngineEnergy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cor.GPUs(), p.cor.Energy()
}

// Kernels returns what engines launched.
func (p *Pipeline) Kernels() []correlate.EngineKernels {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cor.Kernels()
}

// GPUWork returns what the steps of engines kept GPUs busy with.
func (p *Pipeline) GPUWork() []correlate.EngineWork {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cor.Work()
}

// Capabilities returns the capability report of an engine, and has it in the metrics
// from now on, where it follows what becomes of probes. h and probes are as in
// target.Capabilities.
func (p *Pipeline) Capabilities(e *target.Engine, h host.Report, probes []target.ProbeState) []target.Capability {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report = capabilityReport{engine: e, host: h, probes: append(probeStates(nil), probes...)}
	caps := target.Capabilities(e, h, p.report.probes)
	p.caps = capabilityFamilies(e, caps)
	return caps
}

// Steps returns how many messages with outputs or statistics the engine cores sent.
func (p *Pipeline) Steps() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps
}

// Lost returns what was lost so far, in the kernel and in decoding, by reason.
func (p *Pipeline) Lost() []signal.LossCount {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(append([]signal.LossCount(nil), p.kernel...), p.dec.Dropped()...)
}

package correlate

import (
	"strings"

	"inferspan/correlate/semconv"
)

// stageDef is what the specification says of a stage.
type stageDef struct {
	span   *semconv.Span
	name   string
	level  int
	thread threadKind
	nested bool   // it is documented below another stage
	number string // attribute that goes with it, "" if none
	// opens: other stages nest in it. The engine's tracer begins it when it starts and
	// the others, those with both times, when they have ended.
	opens bool
}

type threadKind uint8

const (
	threadUnknown threadKind = iota
	threadTokenizer
	threadController
	threadScheduler
)

const stagePrefix = "sglang.stage."

var (
	stageDefs                   = readStages()
	eventSchedule, eventRetract = semconv.EventByID(semconv.EventIDSGLangEventSchedule), semconv.EventByID(semconv.EventIDSGLangEventRetract)
)

func readStages() map[string]*stageDef {
	all := map[string]*stageDef{}
	for i := range semconv.Spans {
		s := &semconv.Spans[i]
		name, ok := strings.CutPrefix(s.ID, stagePrefix)
		if !ok {
			continue
		}
		d := &stageDef{span: s, name: name, level: s.MinLevel, thread: threadScheduler}
		switch s.Parents[0] {
		case semconv.SpanSGLangThreadTokenizer:
			d.thread = threadTokenizer
		case semconv.SpanSGLangThreadDPController:
			d.thread = threadController
		}
		// One that may be below the thread, too, needs no other stage.
		d.nested = true
		for _, p := range s.Parents {
			d.nested = d.nested && strings.HasPrefix(p, stagePrefix)
		}
		if len(s.Attrs) > 0 {
			d.number = s.Attrs[0].Name
		}
		d.opens = name == semconv.NamePrefillForward || name == semconv.NameDecodeForward
		all[name] = d
	}
	return all
}

package correlate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// detail is a kind of detail that probes give, as ProbeChange tells.
type detail struct {
	name     string
	active   bool
	was      bool        // it was active at some time
	since    signal.Mono // it has been as it is
	lastOff  signal.Mono // when it last became inactive after having been active
	reason   string      // why inactive, or not by the best source
	source   string      // of several, the one that is used
	changes  [2]uint64   // to inactive, to active
	inactive map[uint32]string
	less     map[uint32][]lesser    // what was left out in a process, the latest last
	first    map[uint32]signal.Mono // when it was first active in a process
}

func (e *engine) detail(name string) *detail {
	for i := range e.details {
		if e.details[i].name == name {
			return &e.details[i]
		}
	}
	return nil
}

// maxDetails bounds the names told apart; there are a handful.
const maxDetails = 64

func (c *Correlator) probeChange(s *signal.ProbeChange) {
	e := c.engine(s.Engine)
	if h := e.gpuHost(s.PID); h != nil && s.Probe == signal.DetailMessages {
		h.unseen()
	}
	d := e.detail(s.Probe)
	if d == nil {
		if len(e.details) >= maxDetails {
			return
		}
		e.details = append(e.details, detail{name: s.Probe, inactive: map[uint32]string{}, first: map[uint32]signal.Mono{}, less: map[uint32][]lesser{}})
		d = &e.details[len(e.details)-1]
	}
	other := s.Active && d.was && d.source != s.Source
	d.source = s.Source
	if s.Active {
		d.changes[1]++
		delete(d.inactive, s.PID)
		if d.first[s.PID] == 0 && len(d.first) < maxDetails {
			d.first[s.PID] = s.At
		}
	} else {
		d.changes[0]++
		if len(d.inactive) < maxDetails {
			d.inactive[s.PID] = s.Reason
		}
	}
	if s.Probe == signal.DetailPeeks {
		e.await(s.PID, s.Active)
	}
	c.lighter(d, s)
	// What is missing in one process is missing in values of the engine.
	active := len(d.inactive) == 0
	switch {
	case active:
		if !d.active {
			d.since = s.At
		}
		word := ""
		switch {
		case s.Source != "" && (other || !d.was && s.Lacks+s.Reason != "" || !d.active && d.was):
			word = "seen by " + s.Source
			if s.Lacks != "" {
				word += ", without " + s.Lacks
			}
		case d.was && !d.active:
			word = "seen again"
		}
		if word != "" {
			c.note(s, word)
		}
		d.active, d.was, d.reason = true, true, s.Reason
		return
	case d.active:
		d.since, d.lastOff = s.At, s.At
	}
	d.active = false
	if !s.Active {
		d.reason = s.Reason
		word := "not seen"
		if d.was {
			word = "no longer seen"
		}
		c.note(s, word)
	}
	switch s.Probe {
	case signal.DetailSteps:
		for _, co := range e.cores {
			if co.PID == s.PID || s.PID == 0 {
				co.steps.forget()
				co.m.forgetSteps()
			}
		}
	case signal.DetailPeeks:
		for _, co := range e.cores {
			if co.PID == s.PID || s.PID == 0 {
				co.m.forgetPeek()
			}
		}
	case signal.DetailDetokenize:
		e.tokenCosts = nil
	}
}

// exited: a process is gone, and lacks nothing any more.
func (d *detail) exited(pid uint32, at signal.Mono) {
	d.lighten(pid, nil, "", at)
	if _, out := d.inactive[pid]; !out {
		return
	}
	delete(d.inactive, pid)
	for other := range d.first {
		if other != pid && len(d.inactive) == 0 && !d.active {
			d.active, d.was, d.reason, d.since = true, true, "", at
		}
	}
}

// Note is something that a reader of the results should know.
type Note struct {
	At   int64 // ns since the epoch, 0 if not known
	Text string
}

// maxNotes bounds the notes: what changes so often is no news.
const maxNotes = 100

func (c *Correlator) note(s *signal.ProbeChange, word string) {
	text := "detail " + s.Probe + " " + word
	if s.PID != 0 {
		text += " in process " + strconv.FormatUint(uint64(s.PID), 10)
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	c.addNote(s.At, text)
}

func (c *Correlator) addNote(at signal.Mono, text string) {
	if len(c.notes) >= maxNotes {
		return
	}
	n := Note{Text: text}
	if c.clock.ok {
		n.At = c.clock.wall(at)
	}
	c.notes = append(c.notes, n)
}

// Notes returns what a reader of the results should know, in order: probes that
// were taken out, and put in again.
func (c *Correlator) Notes() []Note { return append([]Note(nil), c.notes...) }

// lostDetail returns why a detail was not seen during all of r, "" if it was, or if it
// never was: then the capability report says so.
func (r *request) lostDetail(name string) string {
	d := r.core.eng.detail(name)
	switch {
	case d == nil && r.core.attaching():
		return "the probes were not in yet"
	case d == nil || !d.was:
		return ""
	case !d.active && d.reason != "":
		return "the probes were taken out: " + d.reason
	case !d.active || d.lastOff >= r.added:
		return "the probes were taken out meanwhile"
	case d.late(r):
		return "it began before the probes were in"
	case !r.arrivalSeen && r.arrival == 0:
		return "it was not seen arriving" // so that added is when something of it was first seen
	}
	return ""
}

// halfSeen returns why not all probes for a detail are in a process, "" if they are or
// nothing was said of them.
func (e *engine) halfSeen(name string, pid uint32) string {
	d := e.detail(name)
	if d == nil {
		return ""
	}
	why, out := d.inactive[pid]
	if !out {
		return ""
	}
	return strings.TrimSuffix("not all probes are in: "+why, ": ")
}

// await: a process is looked into or will be, or it cannot be.
func (e *engine) await(pid uint32, can bool) {
	if !can {
		delete(e.lookedInto, pid)
	} else if len(e.lookedInto) < maxAwaited {
		e.lookedInto[pid] = true
	}
}

// maxAwaited bounds the processes with a core that are told apart.
const maxAwaited = 1024

// attaching: the core has not got its probes yet, which it gets next.
func (co *core) attaching() bool {
	steps := co.eng.detail(signal.DetailSteps)
	return co.eng.lookedInto[co.PID] && (steps == nil || !steps.known(co.PID))
}

// known: something was said of d in a process.
func (d *detail) known(pid uint32) bool {
	_, out := d.inactive[pid]
	return out || d.first[pid] != 0
}

// late: d's probes came after r had begun, in the process of r's core if that has some, or
// in its front end if the engine started that while it was traced.
func (d *detail) late(r *request) bool {
	began := r.added
	if r.arrival != 0 && r.offOK {
		began = min(began, signal.Mono(int64(r.arrival)-r.off))
	}
	if at := d.first[r.core.PID]; at != 0 {
		return began < at
	}
	if p := r.core.eng.process(r.pid); p.joined != 0 {
		at := d.first[r.pid]
		return at == 0 || began < at
	}
	for _, at := range d.first {
		if began >= at {
			return false
		}
	}
	return true
}

// missing names the attributes that are not there since a detail was not seen.
func (v *view) missing(detail string, has func(string) bool, names ...string) {
	why := cmp.Or(v.r.lostDetail(detail), v.r.lessOf(detail))
	for _, n := range names {
		if why != "" && !has(n) {
			v.unavailable = append(v.unavailable, fmt.Sprintf("%s: %s", n, why))
		}
	}
}

// notSeen names what is not known of a request that was over before the probes were in.
func (c *Correlator) notSeen(v *view, has func(string) bool) {
	names := []string{semconv.AttrGenAIUsageCompletionTokens, semconv.AttrGenAILatencyE2E, semconv.AttrGenAILatencyTimeInQueue, semconv.AttrGenAILatencyTimeToFirstToken,
		semconv.AttrGenAILatencyTimeInModelPrefill, semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference}
	if v.r.pooling {
		names = slices.DeleteFunc(names, func(n string) bool {
			return n == semconv.AttrGenAIUsageCompletionTokens || n == semconv.AttrGenAILatencyTimeToFirstToken || n == semconv.AttrGenAILatencyTimeInModelDecode
		})
	}
	if c.opt.Steps >= StepsRefs {
		names = append(names, semconv.AttrInferspanStepsCount)
	}
	for _, n := range names {
		if !has(n) {
			v.unavailable.add(n + ": it was over before the probes were in")
		}
	}
}

// noteUnavailable names the attributes that r would have but for probes that were
// taken out.
func (c *Correlator) noteUnavailable(v *view, has func(string) bool) {
	r := v.r
	miss := func(detail string, names ...string) { v.missing(detail, has, names...) }
	if r.model() == "" && r.core.eng.model != "" {
		v.unavailable = append(v.unavailable, semconv.AttrGenAIRequestModelName+": whether it asked for an adapter was not seen")
	}
	if r.unseen {
		c.notSeen(v, has)
		return
	}
	if r.outline {
		for _, n := range []string{semconv.AttrGenAIRequestTemperature, semconv.AttrGenAIRequestTopP, semconv.AttrGenAIRequestMaxTokens, semconv.AttrGenAIRequestN} {
			v.unavailable = append(v.unavailable, n+": it ended before it was looked at")
		}
	}
	if !r.core.eng.events() && !r.core.eng.seen.Events {
		miss(signal.DetailSteps, semconv.AttrGenAILatencyTimeInQueue, semconv.AttrGenAILatencyTimeInModelPrefill, semconv.AttrGenAILatencyTimeInModelInference)
		if r.lostDetail(signal.DetailSteps) == "" {
			miss(signal.DetailArrivals, semconv.AttrGenAILatencyTimeInQueue)
		}
	}
	if !r.pooling {
		miss(signal.DetailTokenize, semconv.AttrGenAILatencyTimeInTokenize)
		miss(signal.DetailDetokenize, semconv.AttrGenAILatencyTimeInDetokenize)
	}
	if r.core.eng.pdRole == "consumer" {
		miss(signal.DetailTransfer, semconv.AttrGenAILatencyTimeInKVTransfer)
	}
}

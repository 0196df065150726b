package correlate

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// What a step kept its GPU busy with is shared out to its requests.
//
// The time of a step is from when its first launch had been made and the pass before was
// done, to when it was done itself, that is, when the host had its outputs. Times of the
// steps of one host do not overlap, and all in which its GPU worked on steps is in them.
// What it did on a step before the host had the outputs of the one before counts for that
// one: a bound on all, not on each. Each is shared out by scheduled tokens, of prompts and
// generated ones alike, in whole nanoseconds: the parts add up to it.
//
// The energy of an interval between two samples is taken to flow evenly: that of a step is
// the one of its time, shared out to its requests as the time is. What flowed outside of
// all steps is nobody's.

// Methods of the time of a step, and of sharing it out.
const (
	methodPass   = "forward_pass" // from the first launch
	methodStep   = "forward_step" // from the beginning of the step: not all launches are seen
	methodTokens = "scheduled_tokens"
)

// Reasons why a request's part is not known, or some time is no request's.
const (
	reasonSteps     = "not all of its steps were seen"
	reasonNoStep    = "it was seen in no step"
	reasonCalls     = "calls of the CUDA driver were not seen in all of its steps"
	reasonPass      = "the forward pass of a step was not seen whole"
	reasonUntold    = "which forward pass was that of a step was not known in time"
	reasonOrder     = "the forward pass of a step was not seen in its order"
	reasonTokens    = "the tokens of all requests in a step are not known"
	reasonOver      = "the request was over"
	reasonNoTime    = "its GPU time is not known"
	reasonUnread    = "the GPUs were not read during all of it"
	reasonNotAgain  = "the GPUs had not been read again when it was exported"
	reasonManyHosts = "several processes of the engine call for work on GPUs"
)

// Bounds on what waits for the next sample: a second has up to a thousand steps, and a
// step takes seconds at most.
const (
	maxUses      = 4096
	maxIntervals = 64
)

// busyWindow is the time over which the share of busy time is taken, as energyWindow.
const busyWindow = energyWindow

// gpuLedger is what the steps of an engine kept its GPUs busy with.
type gpuLedger struct {
	times     []busyTotal
	nobody    []unattributed
	uses      []gpuUse         // whose last interval has not closed
	intervals []energyInterval // in which a step under way may have its part
	outside   []busyTotal      // joules without a phase
	read      bool             // an interval has closed

	from signal.Mono // of the window
	busy signal.Mono // in it
	last signal.Opt[float64]
}

// busyTotal is time, or energy, of a phase by a method.
type busyTotal struct {
	kind   int
	method string
	time   int64
	joules float64
}

// gpuUse is the time of a step.
type gpuUse struct {
	from, to signal.Mono
	covered  signal.Mono // of it, by intervals
	parts    []gpuPart
}

// gpuPart is a request's.
type gpuPart struct {
	of     *gpuTime // nil: no request's
	kind   int
	tokens int64
	time   int64
}

// energyInterval is what the GPUs of an engine used between two samples.
type energyInterval struct {
	from, to signal.Mono
	joules   float64
	method   string
	reason   string // why it is not known
	given    float64
}

// gpuTime is a request's part of the steps that it was in.
type gpuTime struct {
	steps   int64
	time    int64
	loose   bool   // in some of them by methodStep
	unknown string // why the time of one is not known
	late    int    // steps that are not shared out yet

	joules  float64
	method  string
	open    int    // steps whose last interval has not closed
	missing string // why the energy of one is not known
}

// busy returns the time of a step, of which no other has a part.
func (h *gpuHost) busy(s *signal.Step, all bool) (from, to signal.Mono, method, reason string) {
	k := h.find(s)
	began := s.Schedule
	if k >= 0 && h.workerOf(s.Core.PID) {
		began = h.passes[k].begin
	}
	if began <= 0 || k < 0 || !h.passes[k].waited || h.passes[k].torn {
		return 0, 0, "", reasonPass
	}
	p := h.passes[k]
	// Before its step begins nothing of it can be launched.
	from, method = began, methodStep
	if first := p.firstFrom(began); all && p.launches() && first != 0 {
		from, method = first, methodPass
	}
	from, to = max(from, h.busyUntil), p.wait.At
	if to <= from {
		return 0, 0, "", reasonOrder
	}
	h.busyUntil = to
	return from, to, method, ""
}

// launchesSeen: where launches are counted it is at the driver, which all of them reach, and
// not at the runtime, which some pass by.
func (e *engine) launchesSeen() bool {
	d := e.detail(signal.DetailForward)
	return d == nil || !strings.HasSuffix(d.source, signal.SourceRuntime)
}

// share shares a step out; its pass is not known for the reason untold, if that is not "".
func (e *engine) share(x *stepShare, untold string) {
	var from, to signal.Mono
	method, reason := "", reasonPass
	if h := e.leader(&x.step); h != nil {
		from, to, method, reason = h.busy(&x.step, e.launchesSeen())
	}
	if reason != "" {
		reason = cmp.Or(untold, reason)
	}
	l := &e.ledger
	defer l.conclude(e)
	if x.late {
		for i := range x.parts {
			if t := x.parts[i].of; t != nil {
				t.late--
			}
		}
	}
	if reason == "" && (!x.known || x.tokens == 0) {
		l.count(kindUnknown, method, int64(to-from))
		l.leave(reasonTokens, to-from)
		reason = reasonTokens
		l.use(e, gpuUse{from: from, to: to, parts: []gpuPart{{kind: kindUnknown, time: int64(to - from)}}})
	}
	if reason != "" {
		for i := range x.parts {
			if t := x.parts[i].of; t != nil {
				t.unknown = cmp.Or(t.unknown, reason)
			}
		}
		return
	}
	before, sum := int64(0), int64(0)
	for i := range x.parts {
		p := &x.parts[i]
		// Of the time up to this token in the batch, so that what is rounded off goes on.
		sum += p.tokens
		upTo := proportion(int64(to-from), sum, x.tokens)
		p.time = upTo - before
		before = upTo
		l.count(p.kind, method, p.time)
		if p.of == nil {
			l.leave(reasonOver, signal.Mono(p.time))
		} else {
			p.of.time += p.time
			p.of.loose = p.of.loose || method == methodStep
		}
	}
	l.use(e, gpuUse{from: from, to: to, parts: x.parts})
}

// proportion is all*part/of, rounded down; none is negative and part is at most of.
func proportion(all, part, of int64) int64 {
	hi, lo := bits.Mul64(uint64(all), uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(of))
	return int64(q)
}

func totalOf(list *[]busyTotal, kind int, method string) *busyTotal {
	for i := range *list {
		if t := &(*list)[i]; t.kind == kind && t.method == method {
			return t
		}
	}
	*list = append(*list, busyTotal{kind: kind, method: method})
	return &(*list)[len(*list)-1]
}

func (l *gpuLedger) count(kind int, method string, ns int64) {
	totalOf(&l.times, kind, method).time += ns
}

func (l *gpuLedger) leave(reason string, t signal.Mono) {
	for i := range l.nobody {
		if l.nobody[i].reason == reason {
			l.nobody[i].time += t
			return
		}
	}
	l.nobody = append(l.nobody, unattributed{reason, t})
}

// use takes in the time of a step.
func (l *gpuLedger) use(e *engine, u gpuUse) {
	if l.from == 0 {
		l.from = u.from
	}
	l.busy += max(u.to-max(u.from, l.from), 0)
	if d := u.to - l.from; d >= busyWindow {
		l.last = signal.Some(float64(l.busy) / float64(d))
		l.from, l.busy = u.to, 0
	}

	read := e.energy.at
	if read == 0 || len(l.uses) >= maxUses {
		u.miss(reasonUnread)
		return
	}
	for i := range l.intervals {
		l.give(&l.intervals[i], &u)
	}
	if u.to <= read {
		u.close()
		return
	}
	for _, x := range u.parts {
		if x.of != nil {
			x.of.open++
		}
	}
	l.uses = append(l.uses, u)
}

func (u *gpuUse) miss(reason string) {
	for _, x := range u.parts {
		if x.of != nil {
			x.of.missing = cmp.Or(x.of.missing, reason)
		}
	}
}

// close: the intervals that it lies in are over.
func (u *gpuUse) close() {
	if u.covered < u.to-u.from {
		u.miss(reasonUnread)
	}
}

// interval takes in what the engine's GPUs used between two samples, or why that is not known.
func (l *gpuLedger) interval(c *Correlator, e *engine, i energyInterval) {
	if len(e.gpuHosts) == 0 {
		return
	}
	l.read = true
	if !e.oneCaller() {
		i.joules, i.reason = 0, cmp.Or(i.reason, reasonManyHosts)
	}
	n := 0
	for k := range l.uses {
		u := &l.uses[k]
		l.give(&i, u)
		if u.to > i.to {
			l.uses[n] = *u
			n++
			continue
		}
		l.end(u)
	}
	clear(l.uses[n:])
	l.uses = l.uses[:n]
	l.intervals = append(l.intervals, i)
	l.conclude(e)
	c.workKnown()
}

// end closes a use that was waited for.
func (l *gpuLedger) end(u *gpuUse) {
	u.close()
	for _, x := range u.parts {
		if x.of != nil {
			x.of.open--
		}
	}
}

// unread: no sample tells of the GPUs any more.
func (l *gpuLedger) unread(c *Correlator) {
	for k := range l.uses {
		l.end(&l.uses[k])
	}
	l.uses = nil
	c.workKnown()
}

// give gives a step its part of an interval.
func (l *gpuLedger) give(i *energyInterval, u *gpuUse) {
	d := min(u.to, i.to) - max(u.from, i.from)
	if d <= 0 {
		return
	}
	u.covered += d
	if i.reason != "" {
		u.miss(i.reason)
		return
	}
	of := i.joules * float64(d) / float64(i.to-i.from)
	i.given += of
	for _, x := range u.parts {
		j := of * float64(x.time) / float64(u.to-u.from)
		totalOf(&l.times, x.kind, i.method).joules += j
		if x.of != nil {
			x.of.joules += j
			if x.of.method != methodUtilization {
				x.of.method = i.method
			}
		}
	}
}

// conclude gives up the intervals in which no step under way can have a part.
func (l *gpuLedger) conclude(e *engine) {
	until := signal.Mono(1<<63 - 1)
	for _, h := range e.gpuHosts {
		if h.rank {
			continue // its time is that of the first rank
		}
		for _, p := range h.passes {
			if h.underWay(p) {
				until = min(until, p.begin)
				break
			}
		}
		// One under way whose mark is to come began up to an interval ago, or has no energy.
		if n := len(l.intervals); h.behind && n > 0 {
			until = min(until, l.intervals[n-1].from)
		}
	}
	n := 0
	for n < len(l.intervals) && (l.intervals[n].to <= until || len(l.intervals)-n > maxIntervals) {
		if i := &l.intervals[n]; i.reason == "" {
			totalOf(&l.outside, 0, i.method).joules += max(i.joules-i.given, 0)
		}
		n++
	}
	l.intervals = slices.Delete(l.intervals, 0, n)
}

// gpuAttrs adds r's part of the steps that it was in.
func (c *Correlator) gpuAttrs(v *view, a *attrs) {
	r := v.r
	e := r.core.eng
	if r.steps == nil || !e.calls(r.core.PID) {
		return
	}
	g := r.gpu
	if g == nil {
		g = &gpuTime{}
	}
	why := ""
	switch {
	case !c.stepsComplete(r):
		why = reasonSteps
	case g.steps != r.steps.count:
		why = reasonCalls
	case g.unknown == "" && g.late > 0:
		why = reasonUntold
	default:
		why = g.unknown
	}
	for _, name := range []string{signal.DetailForward, signal.DetailMessages} {
		if d := e.detail(name); (why == reasonCalls || why == reasonPass) && d != nil && d.was && d.lastOff <= r.endAt && (d.lastOff >= r.added || !d.active) {
			why += ": " + r.lostDetail(name)
		}
	}
	leave := func(name, why string) { v.unavailable.add(name + ": " + why) }
	how := methodPass
	if g.loose {
		how = methodStep
	}
	how += ", " + methodTokens
	if why != "" {
		leave(semconv.AttrInferspanGPUTime, why)
		why = reasonNoTime
	} else {
		a.put(semconv.AttrInferspanGPUTime, float64(g.time)/1e9)
		v.derive(how, semconv.AttrInferspanGPUTime)
	}
	if !e.ledger.read && e.energy.at == 0 {
		return
	}
	if why == "" {
		why = g.missing
	}
	if why == "" && g.open > 0 {
		why = reasonNotAgain
	}
	if why != "" {
		leave(semconv.AttrInferspanGPUEnergy, why)
		return
	}
	a.put(semconv.AttrInferspanGPUEnergy, g.joules)
	v.derive(g.method+", "+how, semconv.AttrInferspanGPUEnergy)
}

func (l *gpuLedger) points(f families, e *engine, now signal.Mono) {
	for _, t := range l.times {
		kind := stepKinds[t.kind]
		if t.method == methodPass || t.method == methodStep {
			f.add(semconv.MetricIDOwnGPUBusyTime, float64(t.time)/1e9, e.res, e.model, kind, t.method)
		} else {
			f.add(semconv.MetricIDOwnGPUBusyEnergy, t.joules, e.res, e.model, kind, t.method)
		}
	}
	for _, t := range l.outside {
		f.add(semconv.MetricIDOwnGPUOutsideEnergy, t.joules, e.res, e.model, t.method)
	}
	for _, n := range l.nobody {
		f.add(semconv.MetricIDOwnGPUNobodyTime, float64(n.time)/1e9, e.res, e.model, n.reason)
	}
	if share := l.share(now); share.OK && e.oneCaller() {
		f.add(semconv.MetricIDOwnGPUEngineBusy, share.V, e.res, e.model, methodPass)
	}
}

// share is the part of the latest time in which a pass was under way: of the window
// before, until the one that fills is as long.
func (l *gpuLedger) share(now signal.Mono) signal.Opt[float64] {
	if d := now - l.from; l.from != 0 && d >= busyWindow {
		return signal.Some(float64(l.busy) / float64(d))
	}
	return l.last
}

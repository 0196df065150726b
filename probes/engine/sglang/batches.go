package sglang

import (
	"cmp"
	"slices"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
)

// Bounds of what is remembered of a process.
const (
	maxLives = 1 << 14
	// Batches whose result is to come: overlapping loops have two.
	maxBatches = 4
	// Captures after which one that ended is forgotten: a batch that was launched before
	// it ended still shows it.
	keepEnded = 8
)

// process is a scheduler.
type process struct {
	core    signal.Core
	first   signal.Core // that it does the same as, PID 0: none, or not known
	lives   map[string]*life
	ended   []string    // in the order in which they ended
	count   uint64      // captures of batches and outputs
	number  int64       // of the last batch
	some    bool        // there was one
	at      signal.Mono // when it was captured
	sent    signal.Mono // when the latest outputs were sent
	batches []*batch    // without a result yet, in their order
	ahead   bool        // stager.ahead
	step    signal.Step
}

// batch is a batch that was launched.
type batch struct {
	number  signal.Opt[int64]
	launch  signal.Mono
	done    signal.Mono // when it had been launched, 0 if launch stands for the beginning of all
	more    bool        // some of it is launched later
	size    signal.Opt[int64]
	mode    string
	decode  bool
	after   signal.Mono // the one before was launched by then
	each    int64       // tokens of each request that decodes, -1 if not known
	partial bool
	putOff  bool // its requests are still to be shown
	reqs    []signal.StepRequest
	addrs   []uint64 // of their objects, where it decodes
}

// at gives the id of the request whose object is at an address, "" if it is in none of the
// batch. The objects are there until its result is known. n is where it is likely to be.
func (b *batch) at(addr uint64, n int) string {
	if n >= len(b.addrs) || b.addrs[n] != addr {
		n = slices.Index(b.addrs, addr)
	}
	if addr == 0 || n < 0 {
		return ""
	}
	return string(b.reqs[n].ID)
}

// life returns a request, which may be new.
func (c *Captures) life(p *process, id string, m moment) *life {
	l := p.lives[id]
	if l != nil && l.done && m.have[stampReceived] && m.at[stampReceived] > l.seen.at[stampCompleted] && m.at[stampReceived] != l.seen.at[stampReceived] {
		l = nil // the id is used again
	}
	if l == nil {
		if len(p.lives) >= maxLives {
			c.evict(p)
		}
		l = &life{}
		p.lives[id] = l
	}
	return l
}

// evict forgets the half of the requests that were seen the longest time ago.
func (c *Captures) evict(p *process) {
	ids := make([]string, 0, len(p.lives))
	for id := range p.lives {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(p.lives[a].last, p.lives[b].last), cmp.Compare(a, b)) })
	for _, id := range ids[:len(ids)/2] {
		delete(p.lives, id)
		c.stats.Evicted++
	}
}

// forget drops requests that ended a while ago.
func (p *process) forget() {
	n := 0
	for _, id := range p.ended {
		l := p.lives[id]
		if l != nil && l.done && p.count-l.last < keepEnded {
			break
		}
		if l != nil && l.done {
			delete(p.lives, id)
		}
		n++
	}
	p.ended = slices.Delete(p.ended, 0, n)
}

// see takes the stamps of a request; nil if it cannot be told which one it is, or it had
// ended before.
func (c *Captures) see(p *process, s *stager, id string, m moment) *life {
	if id == "" {
		c.stats.NoID++
		return nil
	}
	l := c.life(p, id, m)
	if l.done {
		return nil
	}
	s.ahead = p.ahead
	s.stamps(id, l, m)
	if !l.told && len(c.unkept) > 0 {
		l.told = true
		s.mark = signal.Mark{At: s.at, Engine: s.engine, PID: s.pid, ID: id, Name: signal.MarkUnkept, Unkept: c.unkept}
		s.emit(&s.mark)
	}
	l.last = p.count
	if l.done {
		p.ended = append(p.ended, id)
	}
	return l
}

// list takes the stamps of the requests of a list, and calls f for each. of is the batch that
// they are in, if the list does not name them; others of the list came to it later.
func (c *Captures) list(p *process, s *stager, v reading, l *list, of *batch, f func(n int, i item, l *life)) (there, whole bool) {
	return c.items(v, l, func(n int, i item) {
		id := i.id()
		if addr := i.addr(); id == "" && addr != 0 && of != nil {
			if id = of.at(addr, n); id == "" {
				return
			}
		}
		life := c.see(p, s, id, i.moment())
		if f != nil && id != "" {
			f(n, i, life)
		}
	})
}

// items calls f for each request of a list, and counts those that are missing.
func (c *Captures) items(v reading, l *list, f func(n int, i item)) (there, whole bool) {
	there, whole = l.items(v.c, f)
	if !whole {
		c.stats.Cut++
		if x := v.c.Slot(l.slot); x != nil && x.Tag == capture.TagItems {
			c.stats.Requests += uint64(x.Total - x.Count())
		}
	}
	return there, whole
}

// leave takes the stamps of requests that were in the batch before. It says nothing of ones
// that are not known, and need not be there.
func (c *Captures) leave(p *process, s *stager, v reading, l *list) {
	if x := v.c.Slot(max(l.slot, 0)); l.slot < 0 || x == nil || x.Tag != capture.TagItems {
		return
	}
	l.items(v.c, func(_ int, i item) {
		if id := i.id(); p.lives[id] != nil {
			c.see(p, s, id, i.moment())
		}
	})
}

// lapse: captures were missed. Requests that were not seen since count may have had
// results in between.
func (p *process) lapse(count uint64) {
	for _, l := range p.lives {
		if l.last < count {
			l.lapsed = true
		}
	}
}

// batch: a batch was launched. What its requests' stamps are now is from before it.
func (c *Captures) batch(p *process, s *stager, v reading) {
	p.count++
	b := &batch{launch: v.mono(slotLaunch), each: -1, after: p.at}
	p.at = s.at
	p.ahead = v.l.plan == planBatch
	if v.l.plan == planLaunch {
		b.launch = s.at
	} else {
		b.done, b.more = s.at, v.sampledLater()
		if at := v.value(slotLaunch); at != nil && at.Tag == capture.TagMissing && at.Missing == capture.MissingName {
			c.unlaunched()
		}
	}
	if v.value(slotNoDrafts) != nil {
		b.each = 1
	}
	if n, ok := v.int(slotNumber); ok {
		b.number = signal.Some(n)
	} else if n, ok := v.int(slotCount); ok {
		b.number = signal.Some(n)
	}
	if b.number.OK {
		if p.some && b.number.V != p.number+1 {
			c.stats.Gaps++
			p.lapse(p.count)
			p.batches = p.batches[:0]
		}
		p.number, p.some = b.number.V, true
		queue, _ := v.int(slotQueue)
		s.upto = b.number.V - 1 - queue
	}
	if p.first.PID != 0 && b.number.OK {
		s.emit(&signal.RankLaunched{At: s.at, Engine: s.engine, PID: s.pid, Core: p.first, Number: b.number.V, Schedule: b.launch, More: b.more})
	}
	b.putOff = v.value(slotPutOff) != nil
	if n, ok := v.int(slotDueNumber); ok {
		c.due(p, s, v, n, false)
	}
	_, beforeWhole := c.list(p, s, v, &v.l.before, nil, nil)
	for i := range v.l.left {
		c.leave(p, s, v, &v.l.left[i])
	}
	if id, at := v.str(slotChunked), v.value(slotChunkedAt); id != "" && at != nil && p.lives[id] != nil {
		var m moment
		m.at[stampChunk], m.have[stampChunk] = monoOf(at)
		c.see(p, s, id, m)
	}
	made := v.value(slotMade)
	more, known := v.chunked()
	there := c.prompts(p, s, v, &v.l.entering, enteringSlots, b, func(n int, i item) prompt {
		chunk := signal.Opt[bool]{V: i.id() == more, OK: known}
		if held, ok := i.int(partHeld); !known && ok {
			chunk = signal.Some(held > 0)
		}
		return prompt{now: i.moment(), made: ints(made, n), chunk: chunk}
	})
	switch {
	case there:
		if v.value(slotPrebuilt) != nil {
			b.mode = "prebuilt"
		}
	case b.putOff:
		b.mode, b.partial = "prefill", true
	default:
		b.decode = true
		b.mode = "decode"
		var whole bool
		there, whole = c.list(p, s, v, &v.l.decoding, nil, b.run)
		if x := v.c.Slot(v.l.decoding.slot); there {
			b.size = signal.Some(int64(x.Total))
		}
		b.partial = !there || !whole
	}
	if b.partial && !b.putOff || !beforeWhole {
		p.lapse(p.count)
	}
	c.schedule(p, s, b)
	for len(p.batches) > 0 && p.batches[0].number.OK && p.batches[0].number.V <= s.upto {
		p.give(p.batches[0], 0, s) // nothing was sent of its result
	}
	// One without requests keeps other ranks company (DP attention).
	p.batches = append(p.batches, b)
	for len(p.batches) > maxBatches-1 {
		p.give(p.batches[0], 0, s)
	}
	p.forget()
}

// schedule: the requests of a batch are in one that was launched.
func (c *Captures) schedule(p *process, s *stager, b *batch) {
	for _, q := range b.reqs {
		if l := p.lives[string(q.ID)]; l != nil && !l.done {
			s.schedule(string(q.ID), l, b)
		}
	}
}

// sampledLater: the tokens of the batch are sampled when the results before it are known, as
// grammars need it. A function to do so is an object of no type that is captured.
func (r reading) sampledLater() bool {
	v := r.value(slotSample)
	return v != nil && v.Tag == capture.TagMissing && v.Missing == capture.MissingType
}

func opt(n int64, ok bool) signal.Opt[int64] { return signal.Opt[int64]{V: n, OK: ok} }

// run adds a request to a batch that decodes. How many tokens are tried for it is not
// known where some are drafts.
func (b *batch) run(_ int, i item, l *life) {
	q := signal.StepRequest{ID: []byte(i.id()), Tokens: b.each, Entry: signal.StepRunning, Phase: signal.StepDecode}
	if l != nil {
		l.entered, l.rest = true, true
	}
	b.reqs, b.addrs = append(b.reqs, q), append(b.addrs, i.addr())
}

// entry says how a request comes into a batch, and that it did. The batch before was
// launched by after, 0 if that was not seen.
func (l *life) entry(after signal.Mono) signal.StepEntry {
	was := l.entered
	l.entered = true
	switch {
	case l.back:
		l.back = false
		return signal.StepResumed
	case was:
		return signal.StepRunning
	case after != 0 && l.seen.at[stampForward] > after && !l.retract:
		return signal.StepNew
	}
	return signal.StepEntryUnknown
}

// outputs: the outputs of a batch are about to be sent.
func (c *Captures) outputs(p *process, s *stager, v reading) {
	p.count++
	// The message has told that requests have ended by then.
	update := s.at
	if v.l.behind && p.sent != 0 {
		update = p.sent
	}
	p.sent = 0
	n, ok := v.int(slotNumber)
	if ok {
		s.upto = n
	}
	if ok {
		c.due(p, s, v, n, true)
	}
	c.list(p, s, v, &v.l.ended, nil, nil)
	c.list(p, s, v, &v.l.sent, nil, nil)
	if i := slices.IndexFunc(p.batches, func(b *batch) bool { return ok && b.number == signal.Some(n) }); i >= 0 {
		c.list(p, s, v, &v.l.decoded, p.batches[i], nil)
	} else if v.l.decoded.named() {
		c.list(p, s, v, &v.l.decoded, nil, nil)
	}
	if ok {
		for len(p.batches) > 0 && p.batches[0].number.V < n {
			p.give(p.batches[0], 0, s)
		}
		if len(p.batches) > 0 && p.batches[0].number.V == n {
			p.give(p.batches[0], update, s)
		}
	} else {
		// A prefill server answers when the caches are handed over.
		for len(p.batches) > 0 && p.over(p.batches[0]) {
			p.give(p.batches[0], 0, s)
		}
	}
	p.forget()
}

// over: all requests of a batch have ended.
func (p *process) over(b *batch) bool {
	return !b.putOff && !slices.ContainsFunc(b.reqs, func(q signal.StepRequest) bool {
		l := p.lives[string(q.ID)]
		return l != nil && !l.done
	})
}

// give hands over the first batch, whose result was there at update, 0 if that was not
// seen.
func (p *process) give(b *batch, update signal.Mono, s *stager) {
	p.batches = slices.Delete(p.batches, 0, 1)
	p.step = signal.Step{
		Core: p.core, Number: b.number, Schedule: b.launch, Launched: b.done, More: b.more, Update: update, Requests: b.reqs, Partial: b.partial,
	}
	s.emit(&p.step)
}

// abort: a request that is in no batch is given up.
func (c *Captures) abort(p *process, s *stager, v reading) {
	var m moment
	for k, name := range stampNames {
		if x := v.value(name); x != nil {
			m.at[k], m.have[k] = monoOf(x)
		}
	}
	id := v.str(slotID)
	c.see(p, s, id, m)
	if l := p.lives[id]; l != nil && !l.done {
		// Between two chunks of its prompt.
		if is := &l.seen; is.at[stampForward] != 0 && is.have[stampPrefilled] && is.at[stampPrefilled] == 0 && !l.handed() {
			s.span(id, stagePrefill, is.at[stampForward], 0, l, nil)
		}
		l.done = true
		p.ended = append(p.ended, id)
	}
}

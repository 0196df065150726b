package sglang

import (
	"slices"

	"inferspan/correlate/signal"
)

// Names of stages, as SGLang's RequestStage has them.
const (
	stageTokenize     = "tokenize"
	stageAPIDispatch  = "api_server_dispatch"
	stageDPDispatch   = "dpc_dispatch"
	stageProcess      = "request_process"
	stageWaiting      = "prefill_waiting"
	stagePrefill      = "prefill_forward"
	stageChunk        = "chunked_prefill"
	stageDecodeWait   = "decode_waiting"
	stageDecode       = "decode_forward"
	stageLoop         = "decode_loop"
	stagePrepare      = "prefill_prepare"
	stageBootstrap    = "prefill_bootstrap"
	stageTransfer     = "prefill_transfer_kv_cache"
	stageDecPrepare   = "decode_prepare"
	stageDecBootstrap = "decode_bootstrap"
	stageDecTransfer  = "decode_transferred"
	stageFakeOutput   = "fake_output"
)

// methodLaunch says that the moment at which a batch was put together is taken to be
// that at which it was launched: the engine keeps the former only when it traces.
const methodLaunch = "batch_launch"

// life is a request in a scheduler: what its stamps were when they were last seen, and
// what the engine's tracer would have kept besides. It follows the methods of
// SchedulerReqTimeStats (observability/req_time_stats.py of 0.5.23), each of which is
// run for stamps that are there even when the engine does not trace.
type life struct {
	seen     moment
	begun    bool        // it was seen before it had its first result
	lapsed   bool        // captures were missed: what stamps were in between is not known
	decodes  signal.Mono // launch of the last decode batch, 0 if there was none since it was put back
	loopFrom signal.Mono // launch at which its first loop begins, 0 if it does not begin at one
	chunks   int         // batches since it was put back of whose prompt more was to come
	chunked  int         // stamps of them that were seen
	chunkTo  signal.Mono // end of a prefill of which it is not known yet whether its last chunk began later
	round    int64       // decode loops
	flight   []int64     // decode batches that it is in whose results were not seen
	retract  bool
	back     bool        // it was put back and is in no batch since
	arrived  bool        // it is known how it came to the queue
	queued   signal.Mono // when it came there first, 0 if that was not seen
	entered  bool        // it was in a batch
	rest     bool        // it was in one with the rest of its prompt, or one behind it, since it was put back
	done     bool
	told     bool   // that no stamps of some of its stages are kept
	last     uint64 // count of the process's captures when it was last seen
}

// stager turns the stamps of a process's requests into stages.
type stager struct {
	engine signal.EngineID
	pid    uint32
	emit   func(signal.Signal)
	at     signal.Mono
	upto   int64 // number of the last batch whose result the stamps have, 0 if not known
	dim    bool  // captures have no stamps
	ahead  bool  // a batch is put together before the result of the one before is worked on
	stage  signal.Stage
	mark   signal.Mark

	completed []completion // what is said last of a capture
}

// completion is that a thread was done with a request.
type completion struct {
	id string
	at signal.Mono
}

// close emits what is to be said last of a capture: nothing of a request follows its end.
func (s *stager) close() {
	for _, x := range s.completed {
		s.mark = signal.Mark{At: x.at, Engine: s.engine, PID: s.pid, ID: x.id, Name: signal.MarkComplete}
		s.emit(&s.mark)
	}
}

func (s *stager) span(id, name string, from, to signal.Mono, l *life, set func(*signal.Stage)) {
	if from == 0 || (to != 0 && to < from) {
		return
	}
	s.stage = signal.Stage{At: s.at, Engine: s.engine, PID: s.pid, ID: id, Name: name, Start: from, End: to, Retract: l != nil && l.retract}
	if set != nil {
		set(&s.stage)
	}
	s.emit(&s.stage)
}

func launched(st *signal.Stage) { st.Method = methodLaunch }

// stamps takes what the stamps of a request are now.
func (s *stager) stamps(id string, l *life, now moment) {
	fresh := l.last == 0
	was := l.seen
	for k := range now.at {
		if now.have[k] {
			l.seen.at[k], l.seen.have[k] = now.at[k], true
		}
	}
	is := &l.seen.at
	// changed: the stamp was set since it was last seen.
	changed := func(k timing) bool { return now.have[k] && now.at[k] != 0 && now.at[k] != was.at[k] }
	known := func(k timing) bool { return was.have[k] && !l.lapsed }
	if fresh {
		l.begun = now.have[stampPrefilled] && (is[stampPrefilled] == 0 || now.have[stampDecoded] && is[stampDecoded] == 0)
		// Its first run is over if it entered the queue after that had begun.
		l.retract = is[stampForward] != 0 && is[stampQueued] > is[stampForward]
		if !l.retract {
			l.queued = is[stampQueued]
		}
	}
	// What goes out with the token of the prefill shows it first, but less of it.
	if l.handed() && !was.have[stampPrebuilt] && now.have[stampDecoded] {
		l.begun = is[stampDecoded] == 0
	}
	// It was put back: set_wait_queue_entry_time for the second time.
	if !fresh && changed(stampQueued) && was.at[stampQueued] != 0 {
		s.before(id, l, &was)
		s.mark = signal.Mark{At: is[stampQueued], Engine: s.engine, PID: s.pid, ID: id, Name: signal.MarkRetract}
		s.emit(&s.mark)
		l.retract, l.back, l.rest, l.decodes, l.loopFrom, l.chunkTo = true, true, false, 0, 0, 0
		l.chunks, l.chunked = 0, 0
		for _, k := range []timing{stampLastForward, stampLastPrefilled, stampChunk, stampDecoded} {
			was.at[k], was.have[k] = 0, true
			if !now.have[k] {
				is[k] = 0
			}
		}
		l.lapsed = false // it begins anew
	} else if changed(stampQueued) && !l.retract {
		l.queued = is[stampQueued]
	}
	if is[stampReceived] != 0 && l.queued != 0 && !l.arrived {
		l.arrived = true
		s.arrive(id, l)
	}
	switch {
	case l.handed():
		// One that ends with the token of its prefill has its end as its forward entry.
		if at := is[stampLastForward]; changed(stampLastForward) && !l.retract && is[stampQueued] <= at {
			s.first(id, stageDecodeWait, is[stampQueued], at)
			s.first(id, stageDecode, at, 0)
		}
	case changed(stampForward) && is[stampQueued] <= is[stampForward]:
		s.first(id, stageWaiting, is[stampQueued], is[stampForward])
	}
	s.prefill(id, l, &was, now, changed, known)
	if changed(stampPrebuilt) {
		s.span(id, stageFakeOutput, is[stampLastForward], is[stampPrebuilt], l, nil)
	}
	if changed(stampTransferred) {
		s.first(id, stageTransfer, is[stampTransfer], is[stampTransferred])
	}
	// Without the stamp of rounds they are still to be told of.
	results := 0
	if now.have[stampDecoded] {
		results = l.landed(s.upto)
	}
	switch {
	case changed(stampDecoded):
		s.loop(id, l, &was, known, results)
	case results > 0 && now.have[stampDecoded] && now.at[stampDecoded] == 0:
		s.wiped(id, l, results) // it was put back since
	}
	switch {
	case s.dim:
		l.lapsed = true
	case now.have[stampDecoded] || now.have[stampQueued]:
		l.lapsed = false
	}
	if changed(stampCompleted) {
		s.completed = append(s.completed, completion{id, is[stampCompleted]})
		l.done = true
	}
}

// first emits a stage of a request's first run.
func (s *stager) first(id, name string, from, to signal.Mono) { s.span(id, name, from, to, nil, nil) }

// handed: another server did its prefill.
func (l *life) handed() bool { return l.seen.at[stampPrealloc] != 0 || l.seen.at[stampPrebuilt] != 0 }

// arrive: set_wait_queue_entry_time for the first time, and what led there.
func (s *stager) arrive(id string, l *life) {
	is := &l.seen.at
	switch {
	case is[stampBootstrap] != 0:
		s.first(id, stagePrepare, is[stampReceived], is[stampBootstrap])
		s.first(id, stageBootstrap, is[stampBootstrap], l.queued)
	case is[stampPrealloc] != 0:
		s.first(id, stageDecPrepare, is[stampReceived], is[stampPrealloc])
		if is[stampIncoming] != 0 {
			s.first(id, stageDecBootstrap, is[stampPrealloc], is[stampIncoming])
			s.first(id, stageDecTransfer, is[stampIncoming], l.queued)
		}
	default:
		s.first(id, stageProcess, is[stampReceived], l.queued)
	}
}

// prefill: set_last_chunked_prefill_finish_time and set_prefill_finished_time.
func (s *stager) prefill(id string, l *life, was *moment, now moment, changed func(timing) bool, known func(timing) bool) {
	is := &l.seen.at
	if changed(stampChunk) {
		l.chunked++
	}
	if changed(stampChunk) && known(stampChunk) {
		from := was.at[stampChunk]
		if from == 0 {
			from = is[stampLastForward]
		}
		s.span(id, stageChunk, from, is[stampChunk], l, nil)
	}
	if end := l.chunkTo; end != 0 && now.have[stampChunk] {
		l.chunkTo = 0
		s.lastChunk(id, l, end)
	}
	// A capture has one of the two stamps, or both; in the first run they are the same.
	end := is[stampLastPrefilled]
	if !now.have[stampLastPrefilled] {
		end = is[stampPrefilled]
	}
	if !(changed(stampLastPrefilled) || !now.have[stampLastPrefilled] && changed(stampPrefilled) && was.at[stampPrefilled] == 0) {
		return
	}
	if is[stampPrefilled] == 0 && known(stampPrefilled) {
		is[stampPrefilled] = end // there was none when its prompt was last in a batch
	}
	// Captures of batches that decode have no stamp of chunks.
	if now.have[stampChunk] || l.begun && !l.lapsed && l.chunked >= l.chunks {
		s.lastChunk(id, l, end)
	} else {
		l.chunkTo = end
	}
	if is[stampPrefilled] == end || is[stampPrefilled] == 0 && !l.retract {
		s.prefilled(id, l, end)
	}
}

// prefilled: set_prefill_finished_time for the first time. The request may have been put
// back before that.
func (s *stager) prefilled(id string, l *life, end signal.Mono) {
	s.span(id, stagePrefill, l.seen.at[stampForward], end, l, nil)
	if l.decodes != 0 && l.decodes < end {
		s.span(id, stageDecode, end, 0, l, nil)
	}
}

// before is what happened to a request before it was put back, and nothing showed: the
// stamps of its decoding are gone by now, but that of its first prefill is kept.
func (s *stager) before(id string, l *life, was *moment) {
	if l.chunkTo != 0 && (l.chunks > 0 || l.retract) {
		s.unseen(id) // what it would have been in, the stamp of its last chunk would have said
	}
	if end := l.seen.at[stampPrefilled]; end != 0 && was.at[stampPrefilled] == 0 && was.at[stampLastPrefilled] == 0 {
		if chunk := was.at[stampChunk]; chunk != 0 && l.chunked >= l.chunks && !l.lapsed {
			s.span(id, stageChunk, chunk, end, l, nil)
		} else if l.chunks > 0 {
			s.unseen(id)
		}
		s.prefilled(id, l, end)
	}
	results := len(l.flight)
	l.flight = l.flight[:0]
	s.wiped(id, l, results)
}

// wiped: results came whose stamps are gone, since the request was put back. Where batches
// are put together ahead of results, that of its last one came later, and was not used.
func (s *stager) wiped(id string, l *life, results int) {
	if s.ahead && len(l.flight) == 0 {
		results--
	}
	if results > 0 && l.begun && !l.lapsed {
		l.round += int64(results)
		s.unseen(id)
	}
}

// lastChunk: a prefill ended, and the stamp of its last chunk but one is known. One that
// is not the first of the request is a stage of its own only if it was in one piece.
func (s *stager) lastChunk(id string, l *life, end signal.Mono) {
	is := &l.seen.at
	switch {
	case is[stampChunk] != 0:
		s.span(id, stageChunk, is[stampChunk], end, l, nil)
	case l.retract && is[stampPrefilled] != end:
		s.span(id, stagePrefill, is[stampLastForward], end, l, nil)
	}
}

// landed returns how many of the decode batches up to one had no result before.
func (l *life) landed(upto int64) int {
	n := 0
	for n < len(l.flight) && l.flight[n] <= upto {
		n++
	}
	l.flight = slices.Delete(l.flight, 0, n)
	return n
}

// loop: set_last_decode_finish_time, for as many results.
func (s *stager) loop(id string, l *life, was *moment, known func(timing) bool, results int) {
	is := &l.seen.at
	from, derived := was.at[stampDecoded], false
	switch {
	case from == 0 && results == 0 && known(stampDecoded) && l.decodes == 0:
		return // an engine that traces notes so when it is first in a batch that decodes
	case l.begun && !l.lapsed && results > 1: // the stamps between were not seen
		l.round += int64(results)
		l.loopFrom = 0
		s.unseen(id)
		return
	case from != 0 && known(stampDecoded) && results == 1:
	case from != 0, !l.begun && !l.retract, l.lapsed:
		l.begun = false // loops were missed, so that their number is not known
		return
	case results != 1:
		l.begun = false
		return
	case l.loopFrom != 0:
		from, derived = l.loopFrom, true
	case l.handed():
		from = is[stampPrebuilt]
	case l.decodes < is[stampLastPrefilled]:
		from = is[stampLastPrefilled]
	default:
		from, derived = l.decodes, true
	}
	l.loopFrom = 0
	s.span(id, stageLoop, from, is[stampDecoded], l, func(st *signal.Stage) {
		if l.begun {
			st.Round = signal.Some(l.round)
		}
		if derived {
			st.Method = methodLaunch
		}
	})
	l.round++
}

// unseen: rounds of decoding have passed without their stamps.
func (s *stager) unseen(id string) {
	s.mark = signal.Mark{At: s.at, Engine: s.engine, PID: s.pid, ID: id, Name: signal.MarkUnseen}
	s.emit(&s.mark)
}

// schedule: set_last_scheduled_time. A request is in a batch that was launched.
func (s *stager) schedule(id string, l *life, b *batch) {
	if b.launch == 0 {
		return
	}
	is := &l.seen.at
	if b.decode && l.decodes == 0 && is[stampLastPrefilled] != 0 && !l.handed() && l.seen.have[stampLastPrefilled] && l.begun {
		if at := is[stampDecoded]; at != 0 {
			s.span(id, stageDecodeWait, is[stampLastPrefilled], at, l, nil)
			s.span(id, stageDecode, at, 0, l, nil)
		} else {
			s.span(id, stageDecodeWait, is[stampLastPrefilled], b.launch, l, launched)
			s.span(id, stageDecode, b.launch, 0, l, launched)
			l.loopFrom = b.launch
		}
	}
	s.mark = signal.Mark{At: b.launch, Engine: s.engine, PID: s.pid, ID: id, Name: signal.MarkSchedule, Method: methodLaunch, Batch: b.number, Size: b.size, Mode: b.mode}
	s.emit(&s.mark)
	if b.decode {
		l.decodes = b.launch
		if b.number.OK {
			l.flight = append(l.flight, b.number.V)
		}
	}
}

package correlate

import (
	"fmt"
	"math/rand/v2"
	"sort"

	"inferspan/correlate/signal"
)

// stamped is a signal with its place in time and the process it was seen in.
type stamped struct {
	at   signal.Mono
	proc uint32
	s    signal.Signal
}

// kindOfTraffic says what the engine of a stream is like.
type kindOfTraffic struct {
	silent    bool // statistics off
	inProcess bool // no messages at all
}

// traffic makes a random but consistent stream: requests of every kind, at once,
// with the scheduler's steps, looks at the engine's memory and tokenizer times.
func traffic(rng *rand.Rand, n int, is kindOfTraffic) []stamped {
	var all []stamped
	var finished []finish
	add := func(t float64, proc uint32, s signal.Signal) { all = append(all, stamped{at(t), proc, s}) }
	head := newScript().sig
	add(0.000001, 0, head[0])
	add(0.000001, 0, head[1])
	key := uint64(0)
	for i := range n {
		t := 10 + rng.Float64()*float64(n)*20
		kind := rng.IntN(10)
		id := fmt.Sprintf("chatcmpl-%d", i)
		conn := uint64(i)
		stream := rng.IntN(2) == 0
		children := 1
		if rng.IntN(6) == 0 {
			children = 2 + rng.IntN(2)
		}
		hasStop := rng.IntN(4) == 0
		tokenized := rng.IntN(3) > 0
		detokenized := rng.IntN(3) == 0
		promptTokens := int64(10 + i%7)
		alone := rng.IntN(8) == 0 // no HTTP: a library user
		begin := &signal.ExchangeBegin{At: at(t), Done: at(t), Exchange: exch(conn), Method: "POST", Path: "/v1/chat/completions",
			Body: signal.RequestBody{Parsed: true, Model: signal.Some("tiny"), MaxTokens: signal.Some(int64(2 + i%5)), Stream: signal.Some(stream), Temperature: signal.Some(0.5)}}
		if rng.IntN(6) == 0 {
			begin.RequestID = id[len("chatcmpl-"):]
		}
		if !alone {
			add(t, apiPID, begin)
		}
		if kind == 0 && !alone {
			add(t+1, apiPID, &signal.ExchangeEnd{At: at(t + 1), First: at(t + 1), Exchange: exch(conn), Status: 400, Outcome: signal.OutcomeComplete, ErrorType: "BadRequestError"})
			continue
		}
		end, firstToken, total := t, 0.0, 0
		left := kind == 1 || kind == 2 // the client leaves
		leaveAt := t + 3 + rng.Float64()*60
		stopped := false
		if tokenized {
			k := &signal.Tokenized{At: at(t + 1.3), Engine: 1, PID: apiPID, Duration: 1000 + int64(i), Tokens: signal.Some(promptTokens)}
			if rng.IntN(4) == 0 {
				k.ID = id
			}
			add(t+1.3, apiPID, k)
		}
		for k := range children {
			name := id
			a := &signal.RequestAdded{At: at(t + 1.5), Core: testCore, ID: fmt.Sprintf("%d_%s-x", k, id), ExternalID: name, ResponseID: id, Arrival: wallT(t + 1), Known: true, PromptTokens: signal.Some(promptTokens),
				Param: signal.Param{Temperature: signal.Some(0.5), TopP: signal.Some(1.0), MaxTokens: signal.Some(int64(2 + i%5)), N: signal.Some[int64](1), HasStop: hasStop}}
			if children > 1 {
				a.Child = signal.Some(k)
			}
			add(t+1.5, corePID, a)
			queued := t + 1.6
			sched := queued + rng.Float64()*20
			now := sched
			tokens := 2 + i%5
			var stamps []float64
			var preempts [][2]float64 // when, and the stamp of the output that tells of it
			schedule := sched
			step := func(schedule, update float64, n, computed int64, entry signal.StepEntry, phase signal.StepPhase, preempted ...string) {
				st := &signal.Step{Core: testCore, Schedule: at(schedule), Update: at(update), PreemptedKnown: true, Tokens: signal.Some(n), Blocks: signal.Some[int64](100), FreeAfter: signal.Some[int64](50)}
				if n > 0 {
					st.Requests = []signal.StepRequest{{ID: []byte(a.ID), Tokens: n, Computed: signal.Some(computed), Entry: entry, Phase: phase}}
				}
				for _, p := range preempted {
					st.Preempted = append(st.Preempted, []byte(p))
				}
				add(update, corePID, st)
			}
			entry, computed := signal.StepNew, int64(0)
			for range rng.IntN(3) { // chunks
				now += 0.5 + rng.Float64()*5
				step(schedule, now, 3, computed, entry, signal.StepPrefillChunk)
				entry, computed, schedule = signal.StepRunning, computed+3, now+0.2
			}
			if rng.IntN(8) == 0 {
				add(queued+0.7*(sched-queued), corePID, &signal.KVTransfer{Core: testCore, ID: a.ID, Start: at(queued + 0.1*(sched-queued)), End: at(queued + 0.7*(sched-queued)), Tokens: signal.Some[int64](4), Failed: signal.Some(false), Exact: true})
			}
			for j := range tokens {
				now += 1 + rng.Float64()*15
				o := signal.Output{ID: []byte(a.ID), NumTokens: 1, Tokens: []int64{int64(j)}}
				if j == 0 {
					o.Events = []signal.EngineEvent{{Kind: signal.EventQueued, At: at(queued)}, {Kind: signal.EventScheduled, At: at(sched)}}
					o.CachedTokens, o.PromptTokens = signal.Some[int64](4), signal.Some(promptTokens)
				} else if rng.IntN(8) == 0 {
					o.Events = []signal.EngineEvent{{Kind: signal.EventPreempted, At: at(now - 0.8)}, {Kind: signal.EventScheduled, At: at(now - 0.5)}}
				}
				last := j == tokens-1
				if left && now > leaveAt+1 {
					break
				}
				switch {
				case j == 0:
					step(schedule, now-0.001, promptTokens-computed, computed, entry, signal.StepPrefillEnd)
				case len(o.Events) > 0:
					preempts = append(preempts, [2]float64{now - 0.8, now})
					step(now-0.8, now-0.7, 0, 0, 0, 0, a.ID)
					step(now-0.5, now-0.001, promptTokens+int64(j), 0, signal.StepResumed, signal.StepRecompute)
				default:
					step(now-0.9, now-0.001, 1, promptTokens+int64(j)-1, signal.StepRunning, signal.StepDecode)
				}
				stamps = append(stamps, now)
				if detokenized {
					add(now+0.5, apiPID, &signal.Detokenized{At: at(now + 0.5), Engine: 1, PID: apiPID, ID: a.ID, Duration: 100 + int64(j), Tokens: 1, Exact: true})
				}
				if is.silent {
					o.Events = nil
				}
				stop := last && hasStop && !left
				if last && !stop && !left {
					o.Finish, o.FinishReason = signal.FinishLength, "length"
				}
				key++
				so := &signal.StepOutput{At: at(now + 0.1), Core: testCore, Stamp: at(now), Key: key, Outputs: []signal.Output{o}}
				if !is.silent {
					so.Stats = &signal.SchedulerStats{Running: signal.Some[int64](1), Waiting: signal.Some[int64](0)}
				}
				add(now+0.1, corePID, so)
				add(now+0.4, apiPID, &signal.Delivered{At: at(now + 0.4), Engine: 1, PID: apiPID, Key: key, Stamped: i%2 == 0})
				if firstToken == 0 || now < firstToken {
					firstToken = now
				}
				total++
				end = max(end, now+0.4)
				if stop {
					stopped = true
					add(now+0.9, corePID, &signal.RequestAborted{At: at(now + 0.9), Core: testCore, IDs: []string{a.ID}})
				}
			}
			if left {
				add(leaveAt+1, corePID, &signal.RequestAborted{At: at(leaveAt + 1), Core: testCore, IDs: []string{a.ID}})
			}
			finished = append(finished, finish{now, a.ID})
			if rng.IntN(3) == 0 {
				when := queued + 0.05 + rng.Float64()*(now-queued)
				if !left || when < leaveAt {
					add(when+0.02, corePID, look(a, when, queued, sched, stamps, preempts, is))
				}
			}
		}
		if alone {
			continue
		}
		x := &signal.ExchangeEnd{Exchange: exch(conn), Streamed: stream}
		if left {
			x.At, x.Outcome = at(leaveAt), signal.OutcomeDisconnect
			if stream && firstToken > 0 && firstToken+1 < leaveAt {
				x.Status, x.ResponseID, x.First = 200, id, at(firstToken+1)
			}
		} else {
			x.At, x.Outcome, x.Status, x.ResponseID, x.First = at(end+2), signal.OutcomeComplete, 200, id, at(end+1)
			if stream {
				x.First = at(firstToken + 1)
			}
			for range children {
				if stopped {
					x.FinishReasons = append(x.FinishReasons, "stop")
				} else {
					x.FinishReasons = append(x.FinishReasons, "length")
				}
			}
			if !stream || rng.IntN(2) == 0 {
				x.InputTokens, x.OutputTokens = signal.Some(promptTokens), signal.Some(int64(total))
			}
		}
		if x.First != 0 && stream {
			add(float64(x.First)/1e6, apiPID, &signal.ExchangeFirst{At: x.First, Exchange: exch(conn), Status: 200, ResponseID: id})
		}
		add(float64(x.At)/1e6, apiPID, x)
	}
	for range n {
		t := 10 + rng.Float64()*float64(n)*20
		add(t, corePID, &signal.EngineState{At: at(t), Core: testCore, Running: signal.Some[int64](1), Waiting: signal.Some[int64](1), KVUsage: signal.Some(0.5)})
		if rng.IntN(4) == 0 {
			add(t, apiPID, &signal.Detokenized{At: at(t), Engine: 1, PID: apiPID, Duration: 1000, Tokens: 10, Exact: true})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at < all[j].at })
	return numbered(all, finished, is)
}

// finish is when a request ended, and its id.
type finish struct {
	at float64
	id string
}

// look is what a look at the memory of the core gives of a request.
func look(a *signal.RequestAdded, when, queued, sched float64, stamps []float64, preempts [][2]float64, is kindOfTraffic) *signal.RequestPeeked {
	p := &signal.RequestPeeked{At: at(when), Request: *a, State: signal.RequestRunning, Output: signal.Some[int64](0), Preemptions: signal.Some[int64](0)}
	p.Request.At, p.Request.Known = 0, false
	for _, s := range stamps {
		if s < when {
			p.Output.V++
		}
	}
	pending := func(kind signal.EventKind, t, told float64) {
		if t < when && told >= when && !is.silent {
			p.Events = append(p.Events, signal.EngineEvent{Kind: kind, At: at(t)})
		}
	}
	first := when // no output: all is still to be told
	if len(stamps) > 0 {
		first = stamps[0]
	}
	pending(signal.EventQueued, queued, first)
	pending(signal.EventScheduled, sched, first)
	for _, x := range preempts {
		pending(signal.EventPreempted, x[0], x[1])
		if x[0] < when {
			p.Preemptions.V++
		}
	}
	return p
}

// numbered gives the steps their numbers and the requests that ended before
// them, and leaves out what an engine in the front end's process does not send.
func numbered(all []stamped, finished []finish, is kindOfTraffic) []stamped {
	sort.Slice(finished, func(i, j int) bool { return finished[i].at < finished[j].at })
	number := int64(100)
	var out []stamped
	for _, s := range all {
		switch x := s.s.(type) {
		case *signal.Step:
			number++
			x.Number = signal.Some(number)
			for len(finished) > 0 && at(finished[0].at) < x.Update {
				x.Finished = append(x.Finished, []byte(finished[0].id))
				finished = finished[1:]
			}
		case *signal.Engine, *signal.Clock, *signal.RequestPeeked, *signal.EngineState:
		default:
			if is.inProcess {
				continue
			}
		}
		out = append(out, s)
	}
	if len(finished) > 0 && is.inProcess {
		last := out[len(out)-1].at + ms
		st := &signal.Step{Core: testCore, Number: signal.Some(number + 1), Schedule: last, Update: last + 1, Tokens: signal.Some[int64](0)}
		for _, f := range finished {
			st.Finished = append(st.Finished, []byte(f.id))
		}
		out = append(out, stamped{last, corePID, st})
	}
	return out
}

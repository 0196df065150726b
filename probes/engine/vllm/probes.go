package vllm

import (
	"errors"
	"slices"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
)

// Modules of the functions that are watched.
const (
	moduleScheduler = "vllm.v1.core.sched.scheduler" // 0.8.5: vllm.v1.core.scheduler
	moduleOutputs   = "vllm.v1.engine"
	moduleCore      = "vllm.v1.engine.core"
)

// waiting is the loop in which a core waits for its workers, one turn of which reads
// the clock in each of these (0.32), or a part of it.
var waiting = []engine.Code{
	{Name: "SpinCondition.wait", File: fileMessageQueue},
	{Name: "MessageQueue.ReadTimeoutWithWarnings.timeout_ms", File: fileMessageQueue},
	{Name: "MessageQueue.ReadTimeoutWithWarnings.should_warn", File: fileMessageQueue},
}

const fileMessageQueue = "vllm/distributed/device_communicators/shm_broadcast.py"

// Bounds of what is read of a step. Those of lists are beyond what a record holds.
const (
	maxStepItems = 4096
	maxIDBytes   = 256
	// Frames from the clock read outwards. An outputs object is made in a
	// comprehension, which is a function of its own before Python 3.12.
	depthSchedule = 1
	depthUpdate   = 4
	depthStep     = 6
)

// Probes returns the probes that show the steps of the scheduler, the best first.
func (p *Peeker) Probes() []engine.Probe {
	module := moduleScheduler
	if _, err := p.in.Module(module); errors.Is(err, python.ErrNotFound) {
		module = "vllm.v1.core.scheduler"
	}
	probes := []engine.Probe{p.clockProbe(module)}
	if d, ok := p.dispatchProbe(); ok {
		// Where workers are told of steps, the core waits for them in a loop that reads the
		// clock: hundreds of traps a step. But what a KV connector loads is seen by the clock.
		at := 0
		if p.connected() {
			at, d.Lacks = 1, d.Lacks+", and KV transfers"
		}
		probes = slices.Insert(probes, at, d)
	}
	if p.inside() {
		probes = append(probes, p.arrivalProbes()...)
	}
	return probes
}

// clockProbe: both ends of a step read time.monotonic, the first of these reads stamping the events, the
// second the outputs. What this version lacks is left out of the plans.
func (p *Peeker) clockProbe(module string) engine.Probe {
	schedule := plan.New(planSchedule, plan.Func(module, "Scheduler.schedule"), depthSchedule)
	self := schedule.Local("self")
	p.state(self)
	p.inFlight(schedule, depthStep)
	p.loads(schedule)
	if on, err := p.log.Bool(); err == nil && !on {
		p.has(self, "running", func(r *plan.Ref) {
			r.Each(slotListed.String(), maxStepItems, maxIDBytes, "request_id", "num_computed_tokens")
			if p.inside() {
				r.Each(slotLengths.String(), maxStepItems, 0, "num_prompt_tokens")
			}
		})
	}

	return engine.Probe{
		Detail:   signal.DetailSteps,
		Source:   engine.SourceClock,
		Callable: plan.Func("time", "monotonic"),
		Waiting:  waiting,
		PerTurn:  len(waiting),
		Watches: []engine.Watch{
			{Caller: plan.Func(module, "Scheduler.schedule"), Plans: []*plan.Plan{schedule}},
			p.lighter(plan.Func(moduleOutputs, "EngineCoreOutputs.__post_init__"), func(whole bool) []*plan.Plan { return []*plan.Plan{p.updatePlan(module, whole)} }),
		},
	}
}

// lighter is a watch with lighter plans to use instead where it costs too much: without the
// requests of a step, but how many tokens it has in all, and what it ended. Where the engine
// does not say what else is seen of requests, there is none: steps are all there is then.
func (p *Peeker) lighter(caller plan.Function, plans func(whole bool) []*plan.Plan) engine.Watch {
	w := engine.Watch{Caller: caller, Plans: plans(true)}
	if on, err := p.log.Bool(); err == nil && on && !p.inside() {
		w.Lighter = []engine.Lighter{{Plans: plans(false), Lacks: []string{"requests of steps"}}}
	}
	return w
}

// updatePlan reads a step at its end; whole: with its requests.
func (p *Peeker) updatePlan(module string, whole bool) *plan.Plan {
	update := plan.New(planUpdate, plan.Func(module, "Scheduler.update_from_output"), depthUpdate)
	self := update.Local("self")
	p.has(self, "current_step", func(r *plan.Ref) { r.Value(slotStep.String()) })
	p.planPool(self, slotFree, slotPool)
	p.inFlight(update, depthStep)
	p.loaded(update)
	out := update.Local("scheduler_output").Addr(slotOutput.String())
	p.composition(out, whole)
	if p.inside() {
		// What would be in messages.
		out.Attr("scheduled_new_reqs").EachLenOf(plan.Function{}, slotPrompts.String(), maxStepItems, maxIDBytes, "req_id", "prompt_token_ids")
		outputs := update.Frame(plan.Func(moduleOutputs, "EngineCoreOutputs.__post_init__"), 1).Local("self").
			AttrOf(plan.Func(moduleOutputs, "EngineCoreOutputs"), "outputs")
		class := plan.Func(moduleOutputs, "EngineCoreOutput")
		outputs.EachLenOf(class, slotOuts.String(), maxStepItems, maxIDBytes, "request_id", "new_token_ids")
		outputs.EachOf(class, slotEnds.String(), maxStepItems, 0, "finish_reason", "pooling_output")
	}
	if whole {
		p.batch(out)
	}
	return update
}

// composition adds what a SchedulerOutput says of a step but for batch, which comes last:
// it may need all the room that is left. whole: that of each of its requests, too.
func (p *Peeker) composition(out *plan.Ref, whole bool) {
	fields := p.fields("vllm.v1.core.sched.output", "SchedulerOutput")
	cached := p.fields("vllm.v1.core.sched.output", "CachedRequestData")
	out.Attr("total_num_scheduled_tokens").Value(slotTokens.String())
	if has(fields, "preempted_req_ids") {
		out.Attr("preempted_req_ids").Elements(slotPreempted.String(), maxStepItems, maxIDBytes)
	}
	if has(fields, "finished_req_ids") {
		out.Attr("finished_req_ids").Elements(slotFinished.String(), maxStepItems, maxIDBytes)
	}
	if !whole {
		return
	}
	others := out.Attr("scheduled_cached_reqs")
	if has(cached, "resumed_req_ids") {
		others.Attr("resumed_req_ids").Elements(slotResumed.String(), maxStepItems, maxIDBytes)
	}
	if has(cached, "num_computed_tokens") {
		others.Attr("num_computed_tokens").Elements(slotComputed.String(), maxStepItems, 0)
	}
	out.Attr("scheduled_new_reqs").Each(slotNew.String(), maxStepItems, maxIDBytes, "req_id", "num_computed_tokens")
}

// batch adds the requests of a step with their tokens.
func (p *Peeker) batch(out *plan.Ref) {
	out.Attr("num_scheduled_tokens").Items(slotScheduled.String(), maxStepItems, maxIDBytes)
}

// inside reports whether the core is part of a program, rather than a process of its
// own, which is of a class derived from that.
func (p *Peeker) inside() bool { return p.core.TypeName() == "EngineCore" }

// has adds to a plan what hangs off an attribute of the scheduler, if it has that.
func (p *Peeker) has(self *plan.Ref, name string, add func(*plan.Ref)) {
	if _, err := p.sched.Attr(name); errors.Is(err, python.ErrNotFound) {
		return
	}
	add(self.Attr(name))
}

// state adds the state of the scheduler: its step, its queues and the KV blocks.
func (p *Peeker) state(self *plan.Ref) {
	p.has(self, "current_step", func(r *plan.Ref) { r.Value(slotStep.String()) })
	p.has(self, "running", func(r *plan.Ref) { r.Len(slotRunning.String()) })
	p.queue(self, "waiting", slotWaiting)
	p.queue(self, "kv_holding_waiting", slotHolding)
	p.queue(self, "deferred_waiting", slotDeferred)
	p.queue(self, "skipped_waiting", slotSkipped)
	p.planPool(self, slotFree, slotPool)
}

// queue adds the length of a queue: a deque, a set, or an object with a heap.
func (p *Peeker) queue(self *plan.Ref, name string, s slot) {
	p.has(self, name, func(r *plan.Ref) {
		if v, err := p.sched.Path(name, "_heap"); err == nil && v.Kind() == python.List {
			r = r.Attr("_heap")
		}
		r.Len(s.String())
	})
}

// planPool adds the free blocks of the KV cache and all of them.
func (p *Peeker) planPool(self *plan.Ref, free, all slot) {
	for _, path := range pools {
		v, err := p.sched.Path(path...)
		if err != nil {
			continue
		}
		if _, err := v.Path("free_block_queue", "num_free_blocks"); err != nil {
			continue
		}
		r := self
		for _, name := range path {
			r = r.Attr(name)
		}
		r.Attr("free_block_queue").Attr("num_free_blocks").Value(free.String())
		r.Attr("num_gpu_blocks").Value(all.String())
		return
	}
}

// inFlight adds how many steps are under way: the queue of the core, or None if it
// runs one at a time.
func (p *Peeker) inFlight(to *plan.Plan, depth int) {
	queue, err := p.core.Attr("batch_queue")
	if err != nil {
		return
	}
	if queue.IsNone() {
		to.Frame(plan.Func(moduleCore, "EngineCore.step"), depth).Local("self").Attr("batch_queue").Value(slotInFlight.String())
		return
	}
	f := to.Frame(plan.Func(moduleCore, "EngineCore.step_with_batch_queue"), depth)
	r := f.Local("self").Attr("batch_queue")
	if _, err := queue.Attr("queue"); err == nil { // a queue.Queue
		r = r.Attr("queue")
	}
	r.Len(slotInFlight.String())
	f.Local("deferred_scheduler_output").Value(slotHeldBack.String())
}

// fields gives the names of the fields of a dataclass; nil if they cannot be read.
func (p *Peeker) fields(module, class string) []string {
	names, err := p.in.DataclassFields(module, class)
	if err != nil {
		return nil
	}
	return names
}

// has reports whether a class has a field; of one that could not be read, it may.
func has(fields []string, name string) bool { return fields == nil || slices.Contains(fields, name) }

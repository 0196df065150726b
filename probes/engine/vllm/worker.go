package vllm

import (
	"errors"
	"fmt"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
)

const (
	modulePickle = "_pickle"
	modulePoller = "zmq.sugar.poll"

	// Python frames from the wake-up of the workers outwards to where the message was written.
	depthEnqueue = 4
	// From where a worker takes a message, and one that is too long for shared memory.
	depthTake, depthTakeLong = 2, 3
	// From where it waits for one: Poller.poll, SpinCondition.wait, acquire_read as a context
	// manager, dequeue; and two more, for versions that put a function between.
	depthIdle = 8
)

// Worker is a worker that is a process of its own, which the core tells by messages in
// shared memory what to do. It must be used by one goroutine at a time.
type Worker struct {
	in   *python.Interp
	loop plan.Function
	long bool // messages may come by a socket instead
}

// NewWorker finds the worker in an interpreter. The error wraps engine.ErrNoFront if there
// is none, or not yet, and python.ErrGone if the process has ended.
func NewWorker(in *python.Interp) (*Worker, error) {
	w := &Worker{in: in, loop: plan.Func(moduleExecutor, "WorkerProc.worker_busy_loop")}
	for _, fn := range []plan.Function{w.loop, plan.Func(moduleQueue, "MessageQueue.dequeue")} {
		if _, err := in.Code(fn.Module, fn.Path...); err != nil {
			if errors.Is(err, python.ErrNotFound) {
				err = fmt.Errorf("%w: %w", engine.ErrNoFront, err)
			}
			return nil, fmt.Errorf("finding vLLM's worker: %w", err)
		}
	}
	_, err := in.Code(moduleQueue, "MessageQueue", "recv")
	w.long = err == nil
	return w, nil
}

// Probes returns those that show at which message of the core the worker is.
//
// Each message is unpickled once, in the loop of the worker: what its thread has the GPU do
// from there to the next is of that message. Which one it is its place in the ring of shared
// memory says, which the core knows too. A thread that waits for messages looks at them
// without a call that could be probed at a bearable cost; after a second without any it
// waits for a wake-up, which ends what belongs to the last message.
func (w *Worker) Probes() []engine.Probe {
	dequeue := plan.Func(moduleQueue, "MessageQueue.dequeue")
	take := plan.New(planTake, w.loop, depthTake)
	take.Frame(dequeue, depthTake).Local("self").Attr("current_idx").Value(slotPlace.String())
	loads := engine.Probe{
		Detail:   signal.DetailMessages,
		Callable: plan.Func(modulePickle, "loads"),
		Watches:  []engine.Watch{{Caller: dequeue, Plans: []*plan.Plan{take}}},
	}
	if w.long {
		recv := plan.Func(moduleQueue, "MessageQueue.recv")
		long := plan.New(planTakeLong, w.loop, depthTakeLong)
		long.Frame(dequeue, depthTakeLong).Local("self").Attr("current_idx").Value(slotPlace.String())
		loads.Watches = append(loads.Watches, engine.Watch{Caller: recv, Plans: []*plan.Plan{long}})
	}
	idle := plan.New(planIdle, w.loop, depthIdle)
	idle.Frame(dequeue, depthIdle).Local("self").Addr(slotQueue.String())
	return []engine.Probe{loads, {
		Detail:  signal.DetailMessages,
		ZMQ:     "zmq_poll",
		Watches: []engine.Watch{{Caller: plan.Func(modulePoller, "Poller.poll"), Plans: []*plan.Plan{idle}}},
	}}
}

// messagePlans adds to the plan of a dispatch which message it is, and returns one for the
// other messages that the core writes to its workers. step is the core's function in which
// steps are made.
func (p *Peeker) messagePlans(dispatch *plan.Plan, step plan.Function) *plan.Plan {
	enqueue := plan.Func(moduleQueue, "MessageQueue.enqueue")
	other := plan.New(planMessage, enqueue, depthEnqueue)
	other.Frame(plan.Func(moduleQueue, "SpinCondition.notify"), depthNotify).Local("self").Addr(slotNotify.String())
	for _, queue := range []*plan.Ref{dispatch.Frame(enqueue, depthEnqueue).Local("self"), other.Local("self")} {
		queue.Addr(slotQueue.String())
		queue.Attr("current_idx").Value(slotPlace.String())
		queue.Attr("buffer").Attr("max_chunks").Value(slotPlaces.String())
	}
	p.has(other.Frame(step, depthCore).Local("self").Attr("scheduler"), "current_step", func(r *plan.Ref) { r.Value(slotStep.String()) })
	return other
}

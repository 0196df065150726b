package vllm

import (
	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/python/plan"
)

const (
	moduleExecutor = "vllm.v1.executor.multiproc_executor"
	moduleQueue    = "vllm.distributed.device_communicators.shm_broadcast"
	moduleSocket   = "zmq.sugar.socket"

	// Python frames from the send of a wake-up outwards: Socket.send, SpinCondition.notify,
	// MessageQueue.enqueue, MultiprocExecutor.collective_rpc, execute_model, the step of
	// the core; and two more, for versions and subclasses that put a function between.
	depthNotify   = 2
	depthDispatch = 7
	depthCore     = 8
)

// lacks is what the steps do not say that are seen at their dispatch; and lacksLoads,
// where the scheduler has a KV connector.
const lacks = "when a step began to be scheduled (known where a new request says it), the state of the queues before it, and free KV blocks at its end"

const lacksLoads = "requests that wait for KV blocks; "

// dispatchProbe shows a step at the wake-up of the workers that are to run it, where
// they are processes of their own. The function that sends it has its breakpoint
// anyway, for the outputs. ok is false if this core wakes no workers so.
//
// pyzmq sends without the interpreter's lock. What the plan reads belongs to the core's
// main thread, which is the one that sends.
func (p *Peeker) dispatchProbe() (engine.Probe, bool) {
	executor, err := p.core.Attr("model_executor")
	if err != nil || executor.TypeName() != "MultiprocExecutor" {
		return engine.Probe{}, false
	}
	for _, fn := range []plan.Function{
		plan.Func(moduleSocket, "Socket.send"), plan.Func(moduleQueue, "SpinCondition.notify"), plan.Func(moduleExecutor, "MultiprocExecutor.execute_model"),
	} {
		if _, err := p.in.Code(fn.Module, fn.Path...); err != nil {
			return engine.Probe{}, false
		}
	}
	if local, err := executor.Path("rpc_broadcast_mq", "n_local_reader"); err == nil {
		if n, err := local.Int(); err == nil && n == 0 {
			return engine.Probe{}, false // the workers are on other hosts
		}
	}
	missing := lacks
	if p.connected() {
		missing = lacksLoads + lacks
	}
	return engine.Probe{
		Detail: signal.DetailSteps,
		Source: engine.SourceDispatch,
		Lacks:  missing,
		ZMQ:    "zmq_msg_send",
		Watches: []engine.Watch{
			p.lighter(plan.Func(moduleSocket, "Socket.send"), p.dispatchPlans),
		},
	}, true
}

// dispatchPlans read a step at its dispatch, whole: with its requests, and the other
// messages to workers.
func (p *Peeker) dispatchPlans(whole bool) []*plan.Plan {
	to := plan.New(planDispatch, plan.Func(moduleExecutor, "MultiprocExecutor.execute_model"), depthDispatch)
	// A long message is several sends, of which the wake-up is the last.
	to.Frame(plan.Func(moduleQueue, "SpinCondition.notify"), depthNotify).Local("self").Addr(slotNotify.String())
	step := "EngineCore.step"
	if queue, err := p.core.Attr("batch_queue"); err == nil && !queue.IsNone() {
		step = "EngineCore.step_with_batch_queue"
	}
	plans := []*plan.Plan{to}
	if p.onCUDA() {
		plans = append(plans, p.messagePlans(to, plan.Func(moduleCore, step)))
	}
	out := to.Local("scheduler_output").Addr(slotOutput.String())
	self := to.Frame(plan.Func(moduleCore, step), depthCore).Local("self").Attr("scheduler")
	p.state(self)
	p.inFlight(to, depthCore)
	p.composition(out, whole)
	if whole {
		p.batch(out)
	}
	return plans
}

// onCUDA reports whether the workers may call the CUDA driver, so that their messages are of interest.
func (p *Peeker) onCUDA() bool {
	device, err := p.config.Path("device_config", "device_type")
	if err != nil {
		return true
	}
	name, err := device.Str()
	return err != nil || name == "cuda"
}

package sglang

import (
	"slices"
	"strings"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
)

// Modules of the functions that are watched.
const (
	moduleScheduler  = "sglang.srt.managers.scheduler"
	moduleStreamer   = "sglang.srt.managers.scheduler_components.output_streamer"
	moduleStreamer55 = "sglang.srt.managers.scheduler_output_processor_mixin" // 0.5.5
	moduleTokenizer  = "sglang.srt.managers.tokenizer_manager"
	moduleController = "sglang.srt.managers.data_parallel_controller"
	moduleBatch      = "sglang.srt.managers.schedule_batch"
	moduleStats      = "sglang.srt.observability.req_time_stats"
	moduleDrafts     = "sglang.srt.speculative.spec_info"
	moduleMode       = "sglang.srt.model_executor.forward_batch_info"
)

// Forward modes: of a batch that only decodes, of one that was computed elsewhere, and of
// one in which requests decode beside those that enter.
var (
	decodeMode   = plan.Func(moduleMode, "ForwardMode.DECODE")
	prebuiltMode = plan.Func(moduleMode, "ForwardMode.PREBUILT")
	mixedMode    = plan.Func(moduleMode, "ForwardMode.MIXED")
)

var (
	none     = plan.Func("builtins", "None")
	noDrafts = plan.Func(moduleDrafts, "SpeculativeAlgorithm.NONE")
)

// message is the class of what is sent between processes, which keeps an id in a slot.
var message = plan.Func("sglang.srt.managers.io_struct", "BaseReq")

// Names of the capture plans.
const (
	planBatch      = "batch"       // a batch is under way
	planLaunch     = "launch"      // the same, at the moment of its launch
	planOutputs    = "outputs"     // outputs are about to be sent
	planAbort      = "abort"       // a request that is in no batch is given up
	planDispatch   = "dispatch"    // the front end has handed a request over
	planFirst      = "first"       // it has the first output of one
	planFinish     = "finish"      // it has the last one
	planController = "dp_dispatch" // the DP controller has handed a request over
)

// Bounds of what is read of a step. Those of lists are beyond what a record holds.
const (
	maxFields  = 1024 // of a batch: 0.5.23 has some 110
	maxItems   = 4096
	maxIDBytes = 256
	// Frames outwards from the function that is called.
	depthLoop    = 1 // the loop appends to its queue
	depthOutputs = 7 // pickling and sending are between the streamer and libzmq: four functions in 0.5.23
	depthResult  = 14
	depthStamp   = 4
)

// loops are the functions that run batches ahead of the results of the ones before, for
// which they have a queue.
var loops = []string{"event_loop_overlap", "event_loop_overlap_disagg_prefill", "event_loop_overlap_disagg_decode"}

// busyLoop is what the loop of an idle scheduler does once in a turn.
var busyLoop = []engine.Code{{Name: "Scheduler.process_input_requests", File: "sglang/srt/managers/scheduler.py"}}

// SchedulerProbes returns what to put into a process that runs a scheduler to see its
// batches and the times of the requests in them. What this version lacks is left out.
//
// An overlapping loop appends each batch that it has launched to a queue, and calls
// that C function at no other time; others read the clock at the launch, which costs
// an idle scheduler something. What a step gave is sent, which the tap on messages
// probes anyway.
//
// generates says whether the model generates tokens. What is looked for and is never
// there would cost each step its time. alone says that no other rank has the same batches,
// so that this one sends what comes of them.
func SchedulerProbes(in *python.Interp, generates signal.Opt[bool], alone bool) []engine.Probe {
	stats := statFields(in, target.RoleCore)
	var ahead []engine.Watch
	loop, running := runningLoop(in)
	if running {
		stats = handing(loop, stats)
	}
	// What is put off the next launch shows, or else the outputs do, by the batch's number.
	putOff := running && alone && loop == loops[0] && numbered(in)
	for _, name := range loops {
		if running && loop != name {
			continue
		}
		fn := plan.Func(moduleScheduler, "Scheduler."+name)
		if _, err := in.Code(fn.Module, fn.Path...); err != nil {
			continue
		}
		ahead = append(ahead, lighter(handing(name, stats), func(stats []string) engine.Watch {
			return engine.Watch{Caller: fn, Plans: []*plan.Plan{batchPlan(in, planBatch, fn, stats, name, putOff)}}
		}))
	}
	probes := []engine.Probe{{Detail: signal.DetailSteps, ZMQ: "zmq_msg_send", Behind: true, Watches: []engine.Watch{lighter(stats, func(stats []string) engine.Watch { return outputWatch(in, stats, generates, putOff) })}}}
	if len(ahead) > 0 {
		return append(probes, engine.Probe{Detail: signal.DetailSteps, Callable: plan.Func("collections", "deque.append"), Watches: ahead})
	}
	fn := plan.Func(moduleScheduler, "Scheduler.run_batch")
	each := lighter(stats, func(stats []string) engine.Watch {
		return engine.Watch{Caller: fn, Plans: []*plan.Plan{batchPlan(in, planLaunch, fn, stats, loop, false)}}
	})
	return append(probes, engine.Probe{
		Detail: signal.DetailSteps, Callable: plan.Func("time", "monotonic"), Watches: []engine.Watch{each}, Waiting: busyLoop, PerTurn: 1,
	})
}

// numbered: a batch keeps its number.
func numbered(in *python.Interp) bool {
	_, err := in.Path(moduleBatch, "ScheduleBatch", "forward_iter")
	return err == nil
}

// lighter gives a watch what to look at instead where its plans cost too much: no rounds of
// decoding, for which a time is read of each request in each step, and then no times of
// requests at all, but which requests are in a step and when it began. Without the former it
// is not seen either when decoding began, if the outputs of the step before did not show it.
func lighter(stats []string, watch func(stats []string) engine.Watch) engine.Watch {
	w := watch(stats)
	if len(stats) == 0 {
		return w
	}
	rounds := slices.DeleteFunc(slices.Clone(stats), func(name string) bool { return name == stampNames[stampDecoded] })
	w.Lighter = []engine.Lighter{
		{Plans: watch(rounds).Plans, Lacks: []string{stageDecodeWait, stageDecode, stageLoop}},
		{Plans: watch(nil).Plans, Lacks: []string{target.SGLangStages}},
	}
	return w
}

// handing leaves out the stamps that no request has in the server that runs a loop: those
// of sharing the work with another, or of the other's part.
func handing(loop string, stats []string) []string {
	out := stampNames[stampBootstrap:]
	switch {
	case decodes(loop):
		out = stampNames[stampBootstrap:stampPrealloc]
	case strings.Contains(loop, "_disagg_"):
		out = stampNames[stampPrealloc:]
	}
	return slices.DeleteFunc(slices.Clone(stats), func(name string) bool { return slices.Contains(out, name) })
}

// decodes: the loop is that of a server whose prompts others compute.
func decodes(loop string) bool { return strings.HasSuffix(loop, "_disagg_decode") }

// runningLoop returns the name of the loop that the scheduler is in; ok is false if that
// cannot be seen.
func runningLoop(in *python.Interp) (name string, ok bool) {
	frames, err := in.MainFrames()
	if err != nil {
		return "", false
	}
	for _, f := range frames {
		_, last, _ := strings.Cut(f.Name, ".")
		if strings.HasPrefix(last, "event_loop_") {
			return last, true
		}
	}
	return "", false
}

// batchPlan reads a batch that a loop has launched: its requests, with their times. Those
// of a decode step differ from those of the step before by one stamp each, so that no
// more is read of a batch that decodes.
//
// Results come one or two steps later. A request whose result is about to be worked on,
// which will replace its stamps, is in this batch or in the one before. What a result
// sends shows the stamps, too, but not each does: a request that does not stream is in
// some messages only.
//
// A request that comes to an idle scheduler waits for what is read here where the launch is
// the pass. Of prompts before which nothing ran, their requests are put off: to the launch of
// the next batch, which comes before their result, or else until their outputs have been sent.
// What is read is the same, since no result comes in between. Where results are worked on
// before the next launch, as for drafts with a grammar, nothing is put off. What was is read
// last: of what has no room it is what may be missing, in one batch.
func batchPlan(in *python.Interp, name string, fn plan.Function, stats []string, loop string, putOff bool) *plan.Plan {
	decoding := decodeStats
	if decodes(loop) {
		decoding = handedStats
	} else if !has(stats, stampNames[stampDecoded]) {
		decoding = nil // to get at another stamp costs as much
	}

	p := plan.New(name, fn, depthLoop)
	batch := p.Local("batch")
	batch.Attr("forward_iter").Value(slotNumber)
	if !numbered(in) {
		p.Local("self").Attr("forward_ct").Value(slotCount)
	}
	if name == planBatch {
		batch.Attr("launch_ts").Value(slotLaunch)
		p.Local("batch_result").Attr("delay_sample_func").Value(slotSample)
	}
	mode := batch.Attr("forward_mode")
	if _, err := in.Path(moduleMode, "ForwardMode", "PREBUILT"); err == nil {
		batch.Attr("forward_mode").When(mode.Is(prebuiltMode)).Value(slotPrebuilt)
	}
	drafts := batch.Attr("spec_algorithm")
	batch.Attr("spec_algorithm").When(drafts.Is(noDrafts)).Addr(slotNoDrafts)
	self := p.Local("self")
	last := self.Attr("last_batch")
	if putOff {
		runs := self.Attr("running_batch").Attr("reqs").Index(0)
		p.PutOff(slotPutOff, mode.IsNot(decodeMode), drafts.Is(noDrafts), last.Is(none), runs.Absent())
	}
	self = p.Local("self") // once more, behind what conditions are about
	if name == planBatch {
		self.Attr("result_queue").Len(slotQueue)
	}
	prompts(p.Local("batch").When(mode.IsNot(decodeMode)), enteringSlots, stats, batchStats)
	p.Local("batch").Attr("reqs").When(mode.Is(mixedMode)).EachPath(slotMade, maxItems, 0, "output_ids.len()")
	before := self.Attr("last_batch").When(last.Differs(batch))
	requests(before.Attr("reqs"), slotBefore, stats, resultStats, nil)
	if !decodes(loop) {
		chunked := self.Attr("chunked_req")
		chunked.Attr("rid").Str(slotChunked, maxIDBytes)
		if has(stats, stampNames[stampChunk]) {
			chunked.Attr("time_stats").Attr(stampNames[stampChunk]).Value(slotChunkedAt)
		}
	}
	// Late, since it may need all the room that is left.
	requests(p.Local("batch").Attr("reqs").When(mode.Is(decodeMode)), slotDecoding, stats, decoding, []string{partAddr})
	if loop == loops[0] && name == planBatch && has(stats, stampNames[stampDecoded]) {
		leftPlan(in, p, mode)
	}
	if putOff {
		due := p.Local("self").WhenDue().Attr("result_queue").Index(0).Index(0)
		due.Attr("forward_iter").Value(slotDueNumber)
		prompts(due, dueSlots, stats, batchStats)
	}
	return p
}

// prompts adds the requests of a batch that does not decode only.
func prompts(batch *plan.Ref, slots promptSlots, have []string, stamps []timing) {
	reqs := batch.Attr("reqs")
	reqs.Len(slots.size)
	requests(reqs, slots.list, have, stamps, enteringParts)
	batch.Attr("extend_lens").Elements(slots.extend, maxItems, 0)
	batch.Attr("prefix_lens").Elements(slots.prefix, maxItems, 0)
}

// leftPlan reads, of requests that were in the batch before one that decodes and are not in
// this one, the stamp of the result before. They end with the result that is to come, which
// replaces it: the loop knows that by their length, and leaves them out. For two batches the
// scheduler keeps what was in them: the fields of each, its list of requests first. The list
// of the batch before is another one than this batch's if any of them left.
//
// A request that streams is read when its outputs are sent.
func leftPlan(in *python.Interp, p *plan.Plan, mode *plan.Ref) {
	fields, err := in.Path(moduleBatch, "ScheduleBatch", "__dataclass_fields__")
	if err != nil {
		return
	}
	entries, err := fields.Items(maxFields)
	if err != nil || len(entries) == 0 {
		return
	}
	if first, err := entries[0].Key.Str(); err != nil || first != "reqs" {
		return
	}
	reqs := p.Local("batch").Attr("reqs")
	kept := p.Local("self").When(mode.Is(decodeMode)).Attr("batch_record_buf")
	for i, slot := range slotsLeft {
		fields := kept.Index(i).Index(1)
		list := fields.Index(0)
		paths, names := requestPaths(stampNames[:], loopStats, nil)
		fields.Index(0).When(list.Differs(reqs)).EachPathIs(slot+":"+strings.Join(names, ","), maxItems, maxIDBytes, "stream", plan.Func("builtins", "False"), paths...)
	}
}

// requests adds the requests of a list: for each its id, some of its stamps, and parts. Of
// those that are not in a batch ids alone say nothing.
func requests(r *plan.Ref, slot string, have []string, stamps []timing, parts []string) {
	paths, names := requestPaths(have, stamps, parts)
	if len(paths) == 1 && slot == slotBefore {
		return
	}
	r.EachPath(slot+":"+strings.Join(names, ","), maxItems, maxIDBytes, paths...)
}

func requestPaths(have []string, stamps []timing, parts []string) (paths, names []string) {
	paths, names = stampPaths(have, stamps)
	paths, names = append([]string{partID}, paths...), append([]string{partID}, names...)
	return append(paths, parts...), append(names, parts...)
}

func stampPaths(have []string, stamps []timing) (paths, names []string) {
	for _, s := range stamps {
		if name := stampNames[s]; has(have, name) {
			paths, names = append(paths, "time_stats."+name), append(names, name)
		}
	}
	return paths, names
}

// outputWatch: the requests that end, when their outputs are sent or they are given up.
func outputWatch(in *python.Interp, stats []string, generates signal.Opt[bool], putOff bool) engine.Watch {
	var plans []*plan.Plan
	var from []plan.Function
	if !generates.OK || generates.V {
		from = append(from, plan.Func(moduleStreamer, "SchedulerOutputStreamer._stream_output_generation"), plan.Func(moduleStreamer55, "SchedulerOutputProcessorMixin.stream_output_generation"))
	}
	if !generates.OK || !generates.V {
		from = append(from, plan.Func(moduleStreamer, "SchedulerOutputStreamer._stream_output_embedding"), plan.Func(moduleStreamer55, "SchedulerOutputProcessorMixin.stream_output_embedding"))
	}
	for _, fn := range from {
		if _, err := in.Code(fn.Module, fn.Path...); err != nil {
			continue
		}
		p := plan.New(planOutputs, fn, depthOutputs)
		result := plan.Func(moduleScheduler, "Scheduler.process_batch_result")
		var mode *plan.Ref
		if _, err := in.Code(result.Module, result.Path...); err == nil {
			batch := p.Frame(result, depthResult).Local("batch")
			batch.Attr("forward_iter").Value(slotNumber)
			mode = batch.Attr("forward_mode")
			if decoded, names := stampPaths(stats, loopStats); len(decoded) > 0 {
				p.Local("reqs").When(mode.Is(decodeMode)).EachPathUnless(slotDecoded+":"+strings.Join(append(names, partAddr), ","),
					maxItems, 0, finished, append(decoded, partAddr)...)
			}
			if sent, names := requestPaths(stats, resultStats, nil); len(sent) > 1 {
				p.Local("reqs").When(mode.IsNot(decodeMode)).EachPathUnless(slotSent+":"+strings.Join(names, ","),
					maxItems, maxIDBytes, finished, sent...)
			}
		}
		paths, names := requestPaths(stats, endStats, nil)
		p.Local("reqs").EachPathIf(slotEnded+":"+strings.Join(names, ","), maxItems, maxIDBytes, finished, paths...)
		if putOff && mode != nil { // last, as above: what has no room is missing there
			at := p.Frame(result, depthResult).When(mode.IsNot(decodeMode))
			next := at.Local("self").Attr("result_queue").Index(0)
			prompts(at.Local("batch").When(next.Absent()), dueSlots, stats, dueStats)
			at.Local("self").When(next.Absent()).Attr("chunked_req").Attr("rid").Str(slotChunked, maxIDBytes)
		}
		plans = append(plans, p)
	}
	abort := plan.Func(moduleScheduler, "Scheduler.send_abort_output")
	if _, err := in.Code(abort.Module, abort.Path...); err == nil {
		p := plan.New(planAbort, abort, depthOutputs)
		req := p.Local("req")
		req.Attr("rid").Str(slotID, maxIDBytes)
		times := req.Attr("time_stats")
		for _, s := range endStats {
			if has(stats, stampNames[s]) {
				times.Attr(stampNames[s]).Value(stampNames[s])
			}
		}
		plans = append(plans, p)
	}
	return engine.Watch{Caller: plan.Func("zmq.sugar.socket", "Socket.send"), Plans: plans}
}

// FrontProbes returns what to put into a process that runs a tokenizer manager to see
// when it works on a request: it reads the clock some seven times for each, and not for
// steps.
func FrontProbes(in *python.Interp) ([]engine.Probe, error) {
	stats := statFields(in, target.RoleAPIServer)
	if stats == nil {
		return nil, engine.ErrNoFront
	}
	api := func(method string) plan.Function { return plan.Func(moduleStats, "APIServerReqTimeStats."+method) }
	// The request was sent: what is read here is not on its way.
	dispatch := plan.New(planDispatch, api("set_api_server_dispatch_finish_time"), depthStamp)
	frontStamps(dispatch.Local("self"), stats, nameCreated, nameTokenized)
	dispatch.Frame(plan.Func(moduleTokenizer, "TokenizerManager._send_one_request"), depthStamp).Local("tokenized_obj").AttrOf(message, "rid").Str(slotID, maxIDBytes)

	first := plan.New(planFirst, plan.Func(moduleTokenizer, "TokenizerManager._handle_batch_output"), 1)
	first.Local("rid").Str(slotID, maxIDBytes)
	state := first.Local("state")
	state.Attr("finished").Value(slotFinished)
	frontStamps(state.Attr("time_stats"), stats, nameCreated, nameTokenized, nameDispatch, nameDispatched)

	finish := plan.New(planFinish, api("set_finished_time"), depthStamp)
	frontStamps(finish.Local("self"), stats, nameDispatch, nameDispatched, nameFirst)
	finish.Frame(plan.Func(moduleTokenizer, "TokenizerManager._handle_batch_output"), depthStamp).Local("rid").Str(slotID, maxIDBytes)
	finish.Frame(plan.Func(moduleTokenizer, "TokenizerManager._handle_abort_req"), depthStamp).Local("recv_obj").AttrOf(message, "rid").Str(slotAborted, maxIDBytes)

	return []engine.Probe{{
		Detail:   signal.DetailStamps,
		Callable: plan.Func("time", "perf_counter"),
		Watches: []engine.Watch{
			{Caller: dispatch.Function(), Plans: []*plan.Plan{dispatch}},
			{Caller: first.Function(), Plans: []*plan.Plan{first}},
			{Caller: api("set_finished_time"), Plans: []*plan.Plan{finish}},
		},
	}}, nil
}

// frontStamps reads those of the stamps that the version has.
func frontStamps(r *plan.Ref, have []string, names ...string) {
	for _, name := range names {
		if has(have, name) {
			r.Attr(name).Value(name)
		}
	}
}

// ControllerProbes returns what to put into a process that runs a DP controller to see
// when it hands requests over. The stamp of the end is the clock read itself.
func ControllerProbes(in *python.Interp) []engine.Probe {
	const method = "DPControllerReqTimeStats.set_dp_dispatch_finish_time"
	fn := plan.Func(moduleStats, method)
	if _, err := in.Code(fn.Module, fn.Path...); err != nil {
		return nil
	}
	p := plan.New(planController, fn, depthStamp)
	p.Local("self").Attr(dispatchName).Value(dispatchName)
	p.Frame(plan.Func(moduleController, "DataParallelController.dispatching_with_trace"), depthStamp).Local("req").AttrOf(message, "rid").Str(slotID, maxIDBytes)
	return []engine.Probe{{
		Detail:   signal.DetailStamps,
		Callable: plan.Func("time", "perf_counter"),
		Watches:  []engine.Watch{{Caller: fn, Plans: []*plan.Plan{p}}},
	}}
}

// statFields gives the names of the times that a process of a role keeps of a request;
// nil if there are none or they cannot be read.
func statFields(in *python.Interp, r target.Role) []string {
	names, err := target.SGLangStamps(in, r)
	if err != nil {
		return nil
	}
	return names
}

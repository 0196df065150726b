package target

import (
	"errors"
	"slices"

	"inferspan/probes/python"
)

// sglangTimes are the classes that have the times of a request, by the role of the
// process, the newest first; and a module that the process has once it does its work.
var sglangTimes = map[Role]struct {
	module  string
	classes []structClass
}{
	RoleCore: {"sglang.srt.managers.scheduler", []structClass{
		{"sglang.srt.observability.req_time_stats", "SchedulerReqTimeStats"},
		{"sglang.srt.metrics.collector", "TimeStats"}, // 0.5.5
	}},
	RoleAPIServer:  {"sglang.srt.managers.tokenizer_manager", sglangFrontTimes},
	RoleOffline:    {"sglang.srt.managers.tokenizer_manager", sglangFrontTimes},
	RoleController: {"sglang.srt.managers.data_parallel_controller", []structClass{{"sglang.srt.observability.req_time_stats", "DPControllerReqTimeStats"}}},
}

var sglangFrontTimes = []structClass{{"sglang.srt.observability.req_time_stats", "APIServerReqTimeStats"}}

// sglangLaunch is when a batch was launched (ScheduleBatch, 0.5.23).
const sglangLaunch = "launch_ts"

// SGLangStamps gives the names of the times that a process of a role keeps of each
// request, none if its version has no class of them. The error is that of reading them,
// python.ErrNotFound if the process does not do that work, or not yet.
func SGLangStamps(in *python.Interp, r Role) ([]string, error) {
	of, ok := sglangTimes[r]
	if !ok {
		return nil, python.ErrNotFound
	}
	if _, err := in.Module(of.module); err != nil {
		return nil, err
	}
	for _, c := range of.classes {
		names, err := in.DataclassFields(c.module, c.class)
		if !errors.Is(err, python.ErrNotFound) {
			return names, err
		}
	}
	return nil, nil
}

// sglangStamps notes which times the processes keep, and what they publish: the first of a
// role that says it.
func (e *Engine) sglangStamps(g []*proc) {
	for _, p := range live(g) {
		if _, ok := e.Stamps[p.Role]; ok {
			continue
		}
		names, err := SGLangStamps(p.interp, p.Role)
		if err != nil {
			continue
		}
		if e.Stamps == nil {
			e.Stamps = make(map[Role][]string)
			e.Sources["stamps"] = sourceLive
		}
		e.Stamps[p.Role] = append([]string{}, names...)
		if p.Role != RoleCore {
			continue
		}
		if batch, err := p.interp.DataclassFields("sglang.srt.managers.schedule_batch", "ScheduleBatch"); err == nil && slices.Contains(batch, sglangLaunch) {
			e.Stamps[p.Role] = append(e.Stamps[p.Role], sglangLaunch)
		}
		_, err = p.interp.Module("sglang.srt.managers.load_snapshot")
		publishes := err == nil
		if publishes || errors.Is(err, python.ErrNotFound) {
			e.Publishes = &publishes
		}
	}
}

// sglangStage is a stage of a scheduler.
type sglangStage struct {
	name   string
	parts  []string // Engine.PDRole of the servers that have it
	stamps []string // the times that tell of it
}

var sglangStages = []sglangStage{
	{"request_process", []string{"none"}, []string{"scheduler_recv_time", "wait_queue_entry_time"}},
	{"prefill_prepare", []string{"producer"}, []string{"scheduler_recv_time", "prefill_bootstrap_queue_entry_time"}},
	{"prefill_bootstrap", []string{"producer"}, []string{"prefill_bootstrap_queue_entry_time", "wait_queue_entry_time"}},
	{"prefill_waiting", []string{"none", "producer"}, []string{"wait_queue_entry_time", "forward_entry_time"}},
	{"prefill_forward", []string{"none", "producer"}, []string{"forward_entry_time", "prefill_finished_time"}},
	{"chunked_prefill", []string{"none", "producer"}, []string{"last_chunked_prefill_finish_time"}},
	{"prefill_transfer_kv_cache", []string{"producer"}, []string{"prefill_transfer_queue_entry_time", "prefill_kv_transfer_finish_time"}},
	{"decode_prepare", []string{"consumer"}, []string{"scheduler_recv_time", "decode_prealloc_queue_entry_time"}},
	{"decode_bootstrap", []string{"consumer"}, []string{"decode_prealloc_queue_entry_time", "decode_transfer_queue_entry_time"}},
	{"decode_transferred", []string{"consumer"}, []string{"decode_transfer_queue_entry_time", "wait_queue_entry_time"}},
	{"decode_waiting", []string{"none"}, []string{"last_prefill_finished_time", "last_decode_finish_time"}},
	{"decode_waiting", []string{"consumer"}, []string{"wait_queue_entry_time", "last_forward_entry_time"}},
	{"fake_output", []string{"consumer"}, []string{"last_forward_entry_time", "decode_prebuilt_finish_time"}},
	{"decode_forward", []string{"none"}, []string{"last_prefill_finished_time", "last_decode_finish_time"}},
	{"decode_forward", []string{"consumer"}, []string{"last_forward_entry_time"}},
	{"decode_loop", []string{"none", "consumer"}, []string{"last_decode_finish_time"}},
}

// SGLangUnstamped names the stages of which a scheduler does not keep the times, though
// it goes through them; keeps tells which times it does. role is Engine.PDRole: none are
// named where it is not known.
func SGLangUnstamped(role string, keeps func(stamp string) bool) (stages []string) {
	for _, s := range sglangStages {
		if slices.Contains(s.parts, role) && slices.ContainsFunc(s.stamps, func(n string) bool { return !keeps(n) }) {
			stages = append(stages, s.name)
		}
	}
	return stages
}

// sglangServes names the servers that go through a stage, by Engine.PDRole.
func sglangServes(stage string) (parts []string) {
	for _, s := range sglangStages {
		if s.name == stage {
			parts = append(parts, s.parts...)
		}
	}
	return parts
}

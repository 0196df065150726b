package sglang

import (
	"math"
	"slices"
	"strings"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
)

// Slots of captures. Those of lists have what there is of each item behind a colon, as
// "ended:rid,completion_time".
const (
	slotNumber    = "number"     // batch.forward_iter
	slotCount     = "count"      // scheduler.forward_ct: the same, at the launch
	slotLaunch    = "launch"     // batch.launch_ts
	slotQueue     = "queue"      // batches before it whose results are to come
	slotSample    = "sample"     // batch_result.delay_sample_func: not None if it is sampled behind the results before
	slotPrebuilt  = "prebuilt"   // is there if the mode is PREBUILT
	slotNoDrafts  = "no_drafts"  // is there if no tokens are drafted
	slotSize      = "size"       // requests; is there if the mode is not DECODE
	slotExtend    = "extend"     // tokens of each of these
	slotPrefix    = "prefix"     // tokens before these
	slotEntering  = "entering"   // requests of a batch that does not decode only
	slotMade      = "made"       // tokens that each of these has generated; is there if some decode beside them
	slotDecoding  = "decoding"   // requests of one that does
	slotPutOff    = "put_off"    // is there if the requests of the batch are not
	slotDueNumber = "due_number" // of a batch of which that was so
	slotBefore    = "before"     // requests of the batch before, if that is another object
	slotChunked   = "chunked"    // request of whose prompt more is to come
	slotChunkedAt = "chunked_at"
	slotSent      = "sent"    // requests of a batch whose outputs are sent and that do not end
	slotDecoded   = "decoded" // the same of one that decodes, as its launch has shown them
	slotEnded     = "ended"   // requests with a reason to end
	slotID        = "id"
	slotAborted   = "aborted"
	slotFinished  = "finished"
)

// promptSlots are the slots of the requests of a batch that does not decode only.
type promptSlots struct{ size, list, extend, prefix string }

// Of the batch itself, and of one for which they were put off.
var (
	enteringSlots = promptSlots{slotSize, slotEntering, slotExtend, slotPrefix}
	dueSlots      = promptSlots{"due_size", "due", "due_extend", "due_prefix"}
)

// slotsLeft have requests of the batch before that are not in this one; at most one of them
// is there.
var slotsLeft = [2]string{"left0", "left1"}

// Parts of the items of lists, beside stamps.
const (
	partID   = "rid"
	partAddr = "id()" // where the request's object is
	partHeld = "inflight_middle_chunks"
)

// finished is the attribute of a request that ends, and None before.
const finished = "finished_reason"

// timing is a time that a scheduler keeps of a request.
type timing int

// Stamps; 0.0 stands for none.
const (
	stampReceived timing = iota
	stampQueued
	stampForward
	stampPrefilled
	stampCompleted
	stampLastForward   // since it was put back
	stampLastPrefilled // since then, too, as the next two
	stampChunk
	stampDecoded
	stampBootstrap // prefill side, when it is apart from decoding
	stampTransfer
	stampTransferred
	stampPrealloc // decode side
	stampIncoming
	stampPrebuilt
	stamps
)

// stampNames are the attributes of SchedulerReqTimeStats.
var stampNames = [stamps]string{
	"scheduler_recv_time", "wait_queue_entry_time", "forward_entry_time", "prefill_finished_time", "completion_time",
	"last_forward_entry_time", "last_prefill_finished_time", "last_chunked_prefill_finish_time", "last_decode_finish_time",
	"prefill_bootstrap_queue_entry_time", "prefill_transfer_queue_entry_time", "prefill_kv_transfer_finish_time",
	"decode_prealloc_queue_entry_time", "decode_transfer_queue_entry_time", "decode_prebuilt_finish_time",
}

// Stamps that are read of requests: of those that enter a batch, of those of a batch
// that decodes, at its launch and when its outputs are sent, of those whose result was
// another, and of those that end. One record holds at least some 180, 540 (390 on a decode
// server), 680, 450 and 150 of them, with ids of 32 bytes.
var (
	batchStats = []timing{
		stampReceived, stampQueued, stampForward, stampPrefilled, stampLastForward, stampLastPrefilled, stampChunk, stampDecoded,
		stampPrealloc, stampIncoming, stampBootstrap,
	}
	decodeStats = []timing{stampLastPrefilled, stampDecoded}
	// On a decode server no prefill ends, and no batch shows a request that comes in but
	// the first one that decodes. Where it was before is read when it ends.
	handedStats = []timing{stampQueued, stampLastForward, stampPrebuilt, stampDecoded}
	loopStats   = []timing{stampDecoded}
	// Of requests whose launch was put off until there was a result, those that it leaves.
	dueStats    = []timing{stampReceived, stampQueued, stampForward, stampLastForward}
	resultStats = []timing{stampLastPrefilled, stampChunk, stampDecoded}
	endStats    = allStamps()
	// Of requests that enter besides: chunks of the prompt that are to come.
	enteringParts = []string{partHeld}
)

func allStamps() []timing {
	all := make([]timing, stamps)
	for s := range all {
		all[s] = timing(s)
	}
	return all
}

// frontNames are the attributes of APIServerReqTimeStats, and dispatchName that of
// DPControllerReqTimeStats, that are read.
var frontNames = []string{nameCreated, nameTokenized, nameDispatch, nameDispatched, nameFirst}

const (
	nameCreated    = "created_time"
	nameTokenized  = "tokenize_finish_time"
	nameDispatch   = "api_server_dispatch_time"
	nameDispatched = "api_server_dispatch_finish_time"
	nameFirst      = "first_token_time"
	dispatchName   = "dpc_dispatch_time"
)

func has(names []string, name string) bool { return slices.Contains(names, name) }

// maxSeconds bounds stamps: the clock of a host that was never restarted.
const maxSeconds = 1e9

// monoOf converts a stamp, s; ok is false if the value is none. 0 is no stamp.
func monoOf(v *plan.Value) (at signal.Mono, ok bool) {
	if v == nil || v.Tag != capture.TagFloat || !(v.Float >= 0 && v.Float < maxSeconds) {
		return 0, false
	}
	return signal.Mono(math.Round(v.Float * 1e9)), true
}

// moment is the stamps that a capture has of a request.
type moment struct {
	at   [stamps]signal.Mono
	have [stamps]bool
}

// list is the slot of a capture that has requests.
type list struct {
	slot  int // -1: the plan has none
	per   int
	stamp []int // index of each value among the stamps, -1 for another
	part  map[string]int
}

func listOf(slots []string, name string) list {
	l := list{slot: -1}
	for n, s := range slots {
		rest, ok := strings.CutPrefix(s, name+":")
		if !ok {
			continue
		}
		names := strings.Split(rest, ",")
		l = list{slot: n, per: len(names), part: map[string]int{}}
		for i, part := range names {
			l.stamp = append(l.stamp, slices.Index(stampNames[:], part))
			l.part[part] = i
		}
	}
	return l
}

// dim: the list has no stamps.
func (l *list) dim() bool {
	return !slices.ContainsFunc(l.stamp, func(k int) bool { return k >= 0 })
}

// named: the list has the ids of the requests.
func (l *list) named() bool { _, ok := l.part[partID]; return ok }

// item is a request of a list.
type item struct {
	l      *list
	values []plan.Value
}

// id is the id of the request, "" if it could not be read.
func (i item) id() string {
	if n, ok := i.l.part[partID]; ok && i.values[n].IsStr() {
		return i.values[n].Str
	}
	return ""
}

func (i item) moment() (m moment) {
	for n, s := range i.l.stamp {
		if s >= 0 {
			m.at[s], m.have[s] = monoOf(&i.values[n])
		}
	}
	return m
}

// int gives a part that is an int, and not negative.
func (i item) int(part string) (int64, bool) {
	n, ok := i.l.part[part]
	if !ok || i.values[n].Tag != capture.TagInt || i.values[n].Int < 0 {
		return 0, false
	}
	return i.values[n].Int, true
}

// addr is where the request's object is, 0 if the list does not say.
func (i item) addr() uint64 {
	if n, ok := i.l.part[partAddr]; ok && i.values[n].Tag == capture.TagAddr {
		return i.values[n].Addr
	}
	return 0
}

// items calls f for each request of a list. there is false if the capture has no such
// list, and whole if some are missing.
func (l *list) items(c *plan.Capture, f func(n int, i item)) (there, whole bool) {
	if l.slot < 0 {
		return false, true
	}
	v := c.Slot(l.slot)
	if v == nil {
		return false, true // left out by a condition, or cut off
	}
	if v.Tag == capture.TagMissing && (v.Missing == capture.MissingName || v.Missing == capture.MissingUnset) {
		return false, true // there is no batch
	}
	if v.Tag != capture.TagItems || v.Per != l.per {
		return false, false
	}
	for n := range v.Count() {
		f(n, item{l, v.Values[n*v.Per : (n+1)*v.Per]})
	}
	return true, v.Complete()
}

package sglang

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// maxPeeked bounds the requests that are read at once. A scheduler has as many as
// clients send; those beyond the bound become known by their outputs.
const maxPeeked = 1 << 14

// maxEnviron bounds the variables of the environment that are looked at.
const maxEnviron = 1 << 12

// Peeker looks into the memory of one scheduler, without stopping it. It must be used by
// one goroutine at a time.
type Peeker struct {
	in    *python.Interp
	sched python.Value // Scheduler
	stats []string     // fields of the times of a request
	seen  map[string]bool
}

// NewPeeker finds the scheduler of a process. Errors: engine.ErrNoCore (a process that
// starts has none yet), and those of package python.
func NewPeeker(in *python.Interp) (*Peeker, error) {
	frames, err := in.MainFrames()
	if err != nil {
		return nil, fmt.Errorf("finding the scheduler: %w", err)
	}
	for _, f := range frames {
		v, err := f.Local("scheduler")
		if err != nil || v.IsNone() {
			continue
		}
		if _, err := v.Attr("waiting_queue"); err != nil {
			continue
		}
		// It lives as long as the process; the way to it does not.
		if v, err = in.Object(v.Addr()); err != nil {
			return nil, fmt.Errorf("finding the scheduler: %w", err)
		}
		return &Peeker{in: in, sched: v, stats: statFields(in, target.RoleCore), seen: map[string]bool{}}, nil
	}
	return nil, engine.ErrNoCore
}

// Probes returns what to put into the process to see more of it.
func (p *Peeker) Probes() []engine.Probe {
	var generates signal.Opt[bool]
	if b := get(&lookup{}, "", python.Value.Bool, p.sched, "is_generation"); b != nil {
		generates = signal.Some(*b)
	}
	ranks := func(of string) bool {
		n := argument(p, &lookup{}, of, python.Value.Int)
		return n != nil && *n == 1
	}
	return SchedulerProbes(p.in, generates, ranks("tp_size") && ranks("pp_size") && !p.inTurn())
}

// inTurn: of two prefills one after the other the first one's result is worked on before the
// second is launched, or that cannot be told. The engine looks at its environment each time.
func (p *Peeker) inTurn() bool {
	vars, err := p.in.Path("os", "environ", "_data")
	if err != nil {
		return true
	}
	all, err := vars.Items(maxEnviron)
	if err != nil {
		return true
	}
	for _, v := range all {
		name, err := v.Key.Bytes()
		if err != nil {
			return true
		}
		if string(name) == "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP" {
			set, err := v.Value.Bytes()
			return err != nil || !slices.Contains([]string{"false", "0", "no", "n"}, strings.ToLower(string(set)))
		}
	}
	return false
}

// lookup reads values and notes what could not be read.
type lookup struct{ missing map[string]string }

func (r *lookup) miss(name string, err error) {
	if r.missing != nil && err != nil {
		r.missing[name] = err.Error()
	}
}

// get reads one value; nil if it cannot be read, or is None.
func get[T any](r *lookup, name string, as func(python.Value) (T, error), v python.Value, path ...string) *T {
	v, err := v.Path(path...)
	if err == nil && v.IsNone() {
		return nil
	}
	if err == nil {
		var t T
		if t, err = as(v); err == nil {
			return &t
		}
	}
	r.miss(name, err)
	return nil
}

// argument reads one of the server's arguments; nil if it cannot be read, or is None.
func argument[T any](p *Peeker, r *lookup, name string, as func(python.Value) (T, error)) *T {
	args, err := p.sched.Attr("server_args")
	if err != nil {
		r.miss(name, err)
		return nil
	}
	v, ok := target.SGLangArgument(args, name)
	if !ok {
		r.miss(name, fmt.Errorf("argument %s: %w", name, python.ErrNotFound))
		return nil
	}
	return get(r, name, as, v)
}

// textOf reads a str, or the value of an enum of them.
func textOf(v python.Value) (string, error) {
	if _, member, err := v.Enum(); err == nil {
		v = member
	}
	return v.Str()
}

func ptr[T any](v T) *T { return &v }

// Config reads what the scheduler was configured with. What cannot be read is named in
// the note.
func (p *Peeker) Config() note.Config {
	r := lookup{missing: map[string]string{}}
	c := note.Config{
		Model:            argument(p, &r, "model_path", textOf),
		Policy:           argument(p, &r, "schedule_policy", textOf),
		TensorParallel:   argument(p, &r, "tp_size", python.Value.Int),
		PipelineParallel: argument(p, &r, "pp_size", python.Value.Int),
		DataParallel:     argument(p, &r, "dp_size", python.Value.Int),
		MaxModelLen:      get(&r, "context_len", python.Value.Int, p.sched, "model_config", "context_len"),
		MaxSeqs:          get(&r, "max_running_requests", python.Value.Int, p.sched, "max_running_requests"),
		MaxBatchedTokens: get(&r, "max_prefill_tokens", python.Value.Int, p.sched, "max_prefill_tokens"),
		BlockSize:        get(&r, "page_size", python.Value.Int, p.sched, "page_size"),
		AsyncScheduling:  get(&r, "enable_overlap", python.Value.Bool, p.sched, "enable_overlap"),
	}
	if off := argument(p, &r, "disable_radix_cache", python.Value.Bool); off != nil {
		c.PrefixCaching = ptr(!*off)
	}
	if v, err := p.sched.Attr("chunked_prefill_size"); err == nil {
		c.ChunkedPrefill = ptr(!v.IsNone())
	} else {
		r.miss("chunked_prefill_size", err)
	}
	if n := get(&r, "max_total_num_tokens", python.Value.Int, p.sched, "max_total_num_tokens"); n != nil && c.BlockSize != nil && *c.BlockSize > 0 {
		c.Blocks = ptr(*n / *c.BlockSize)
	}
	none := lookup{missing: map[string]string{}}
	if alg := argument(p, &none, "speculative_algorithm", textOf); alg != nil {
		c.SpecMethod = alg
		c.SpecTokens = argument(p, &r, "speculative_num_draft_tokens", python.Value.Int)
	} else if len(none.missing) == 0 {
		c.SpecMethod, c.SpecTokens = ptr(""), ptr(int64(0))
	}
	switch mode := argument(p, &r, "disaggregation_mode", textOf); {
	case mode == nil:
	case *mode == "null":
		c.KVConnector = ptr("")
	default:
		c.KVConnector = argument(p, &r, "disaggregation_transfer_backend", textOf)
		c.KVRole = mode
	}
	if lora := argument(p, &lookup{}, "enable_lora", python.Value.Bool); lora != nil {
		c.LoRA = lora
	}
	if len(r.missing) > 0 {
		c.Missing = r.missing
	}
	return c
}

// State reads the state of the scheduler; what cannot be read now is left out. The
// error says that nothing could.
func (p *Peeker) State() (note.State, error) {
	var s note.State
	n, err := length(p.sched, "running_batch", "reqs")
	if err != nil {
		return s, fmt.Errorf("reading the state of the scheduler: %w", err)
	}
	s.Running = &n
	if n, err := length(p.sched, "waiting_queue"); err == nil {
		s.Waiting = &n
	}
	for _, path := range grammarQueues {
		if n, err := length(p.sched, path...); err == nil {
			s.Deferred = &n
			break
		}
	}
	s.Step = get(&lookup{}, "", python.Value.Int, p.sched, "forward_ct")
	page := get(&lookup{}, "", python.Value.Int, p.sched, "page_size")
	total := get(&lookup{}, "", python.Value.Int, p.sched, "max_total_num_tokens")
	used, usage, ok := p.published()
	if !ok {
		return s, nil
	}
	s.UsedTokens, s.KVUsage = &used, usage
	if page != nil && total != nil && *page > 0 && used <= *total {
		s.Blocks = ptr(*total / *page)
		s.FreeBlocks = ptr((*total - used) / *page)
	}
	return s, nil
}

// grammarQueues are the places of the requests that wait for a grammar (0.5.23, 0.5.5).
var grammarQueues = [][]string{{"grammar_manager", "grammar_queue"}, {"grammar_queue"}}

func length(v python.Value, path ...string) (int64, error) {
	v, err := v.Path(path...)
	if err != nil {
		return 0, err
	}
	n, err := v.Len()
	if errors.Is(err, python.ErrType) {
		n, err = v.ArrayLen()
	}
	return int64(n), err
}

// requestsOf are the places of requests, with what they do there. A batch that was
// prefilled joins the running one with the next step.
var requestsOf = []struct {
	status string
	path   []string
}{
	{statusRunning, []string{"running_batch", "reqs"}},
	{statusRunning, []string{"last_batch", "reqs"}},
	{statusRunning, []string{"cur_batch", "reqs"}},
	{statusWaiting, []string{"waiting_queue"}},
	{statusGrammar, grammarQueues[0]},
	{statusGrammar, grammarQueues[1]},
}

// What a request does, in notes.
const (
	statusRunning = "running"
	statusWaiting = "waiting"
	statusGrammar = "grammar" // waits for its grammar to be compiled
)

// Requests reads the requests that the scheduler has, those left out that end
// meanwhile, with their times. How many tokens they have their next outputs say.
func (p *Peeker) Requests(now func() uint64) (reqs []note.Request, at uint64, err error) {
	clear(p.seen)
	return p.NewRequests(now)
}

// NewRequests is as Requests, without those that were returned before.
func (p *Peeker) NewRequests(now func() uint64) (reqs []note.Request, at uint64, err error) {
	add := func(v python.Value, status string) error {
		q, err := p.request(v)
		if errors.Is(err, python.ErrGone) {
			return err
		}
		if err != nil || q.ID == "" || p.seen[q.ID] {
			return nil // it has ended
		}
		q.Status = status
		p.seen[q.ID] = true
		reqs = append(reqs, q)
		return nil
	}
	for _, place := range requestsOf {
		v, err := p.sched.Path(place.path...)
		if err != nil || v.IsNone() {
			continue // this version has no such place, or it is empty
		}
		list, err := v.List(maxPeeked)
		if err != nil {
			continue
		}
		for _, v := range list {
			if err := add(v, place.status); err != nil {
				return nil, now(), err
			}
		}
	}
	if v, err := p.sched.Attr("chunked_req"); err == nil && !v.IsNone() {
		if err := add(v, statusRunning); err != nil {
			return nil, now(), err
		}
	}
	return reqs, now(), nil
}

// request reads one request; one without id if it is over.
func (p *Peeker) request(v python.Value) (q note.Request, err error) {
	if v, err = p.in.Object(v.Addr()); err != nil {
		return q, err
	}
	id, err := v.Attr("rid")
	if err != nil {
		return q, err
	}
	name, err := id.Str()
	if err != nil {
		return q, err
	}
	if end, err := v.Attr("finished_reason"); err != nil || !end.IsNone() {
		return q, err
	}
	rd := lookup{missing: map[string]string{}}
	if n, err := length(v, "origin_input_ids"); err == nil {
		q.Prompt = &n
	}
	q.Stream = get(&rd, "stream", python.Value.Bool, v, "stream")
	q.Room = get(&lookup{}, "", python.Value.Int, v, "bootstrap_room")
	q.Preemptions = get(&lookup{}, "", python.Value.Int, v, "retraction_count")
	if s, err := v.Attr("sampling_params"); err == nil && !s.IsNone() {
		q.Params = &note.Params{
			Temperature: get(&rd, "temperature", python.Value.Number, s, "temperature"),
			TopP:        get(&rd, "top_p", python.Value.Number, s, "top_p"),
			TopK:        get(&rd, "top_k", python.Value.Int, s, "top_k"),
			MaxTokens:   get(&rd, "max_new_tokens", python.Value.Int, s, "max_new_tokens"),
			N:           get(&rd, "n", python.Value.Int, s, "n"),
		}
	}
	if lora, err := v.Attr("lora_id"); err == nil && lora.IsNone() {
		q.Adapter = ptr("")
	}
	var names []string
	for _, s := range stampNames {
		if has(p.stats, s) {
			names = append(names, s)
		}
	}
	q.Times = times(v, names)
	for _, name := range [...]string{"stream", "temperature", "top_p", "top_k", "max_new_tokens", "n"} {
		if _, ok := rd.missing[name]; ok {
			q.Missing = append(q.Missing, name)
		}
	}
	// Did it live on all the while?
	again, err := v.Attr("rid")
	if err != nil || again.Addr() != id.Addr() {
		return q, python.ErrUnstable
	}
	q.ID = name
	return q, nil
}

// times reads the stamps of a request's time_stats, nil if there are none.
func times(v python.Value, names []string) map[string]int64 {
	stats, err := v.Attr("time_stats")
	if err != nil || stats.IsNone() {
		return nil
	}
	out := map[string]int64{}
	for _, name := range names {
		s, err := stats.Attr(name)
		if err != nil {
			continue
		}
		f, err := s.Number()
		if err == nil && f >= 0 && f < maxSeconds {
			out[name] = int64(math.Round(f * 1e9))
		}
	}
	return out
}

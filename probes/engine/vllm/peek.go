package vllm

import (
	"errors"
	"fmt"

	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// Bounds of looks at a core. A core has as many requests as clients send; those
// beyond the bound become known by their outputs.
const (
	maxPeeked     = 1 << 14
	maxEvents     = 1 << 10 // of one request: two, and one more for each preemption
	maxHeaders    = 1 << 8  // trace headers of a request
	countTries    = 20      // looks for a moment between two updates
	maxStatus     = 1 << 8  // members of the enum of states
	maxAttributes = 1 << 10 // of a request, which has some 45 in 0.32
	noneOf        = ""
)

// Peeker looks into the memory of one engine core, without stopping it. It must be
// used by one goroutine at a time.
type Peeker struct {
	in      *python.Interp
	config  python.Value // VllmConfig
	core    python.Value // EngineCore
	sched   python.Value
	log     python.Value // log_stats, zero if there is none
	status  map[int64]string
	events  map[int64]string
	seen    map[string]bool              // requests returned, by id
	names   map[uint64]string            // names of attributes, by the address of the str
	offsets map[uint64]map[string]uint64 // offsets of fields of message classes, by class
}

// NewPeeker finds the engine core of a process. Errors: engine.ErrNoCore (a core that
// starts has none yet), and those of package python.
func NewPeeker(in *python.Interp) (*Peeker, error) {
	p := &Peeker{in: in, seen: make(map[string]bool), names: make(map[uint64]string), offsets: make(map[uint64]map[string]uint64)}
	core, err := target.FindCore(in)
	if errors.Is(err, target.ErrNoCore) {
		return nil, engine.ErrNoCore
	}
	if err != nil {
		return nil, err
	}
	sched, err := core.Attr("scheduler")
	if err != nil {
		return nil, fmt.Errorf("finding the scheduler: %w", err)
	}
	config, err := core.Attr("vllm_config")
	if err != nil {
		if config, err = sched.Attr("vllm_config"); err != nil {
			return nil, fmt.Errorf("finding the configuration: %w", err)
		}
	}
	// These three live as long as the engine; the ways to them do not.
	for to, v := range map[*python.Value]python.Value{&p.core: core, &p.sched: sched, &p.config: config} {
		if *to, err = in.Object(v.Addr()); err != nil {
			return nil, fmt.Errorf("finding the engine core: %w", err)
		}
	}
	if v, err := p.sched.Attr("log_stats"); err == nil {
		p.log = v
	}
	p.status = members(in, "vllm.v1.request", "RequestStatus")
	p.events = members(in, "vllm.v1.engine", "EngineCoreEventType")
	return p, nil
}

// members reads the names of an enum by value; nil if it cannot be read.
func members(in *python.Interp, module, class string) map[int64]string {
	c, err := in.Path(module, class)
	if err != nil {
		return nil
	}
	items, err := c.EnumMembers(maxStatus)
	if err != nil {
		return nil
	}
	out := make(map[int64]string, len(items))
	for _, it := range items {
		k, kerr := it.Key.Str()
		n, nerr := it.Value.Int()
		if kerr == nil && nerr == nil {
			out[n] = k
		}
	}
	return out
}

// Config reads what the core was configured with. What cannot be read is named in
// the note.
func (p *Peeker) Config() note.Config {
	r := lookup{missing: make(map[string]string)}
	c := note.Config{
		Model:            get(&r, "model", python.Value.Str, p.config, "model_config", "model"),
		MaxModelLen:      get(&r, "max_model_len", python.Value.Int, p.config, "model_config", "max_model_len"),
		MaxSeqs:          get(&r, "max_seqs", python.Value.Int, p.config, "scheduler_config", "max_num_seqs"),
		MaxBatchedTokens: get(&r, "max_batched_tokens", python.Value.Int, p.config, "scheduler_config", "max_num_batched_tokens"),
		ChunkedPrefill:   get(&r, "chunked_prefill", python.Value.Bool, p.config, "scheduler_config", "enable_chunked_prefill"),
		Policy:           get(&r, "policy", python.Value.Str, p.config, "scheduler_config", "policy"),
		BlockSize:        get(&r, "block_size", python.Value.Int, p.config, "cache_config", "block_size"),
		PrefixCaching:    get(&r, "prefix_caching", python.Value.Bool, p.config, "cache_config", "enable_prefix_caching"),
		TensorParallel:   get(&r, "tensor_parallel", python.Value.Int, p.config, "parallel_config", "tensor_parallel_size"),
		PipelineParallel: get(&r, "pipeline_parallel", python.Value.Int, p.config, "parallel_config", "pipeline_parallel_size"),
		DataParallel:     p.dataParallel(&r),
	}
	if c.AsyncScheduling = get(&r, "async_scheduling", python.Value.Bool, p.config, "scheduler_config", "async_scheduling"); c.AsyncScheduling == nil {
		// Before it is decided the option may be None; the core has the outcome.
		c.AsyncScheduling = get(&r, "async_scheduling", python.Value.Bool, p.core, "async_scheduling")
	}
	c.LogStats = get(&r, "log_stats", python.Value.Bool, p.log)
	if b, err := p.blocks(); err == nil {
		c.Blocks = b
	} else {
		r.miss("blocks", err)
	}
	if spec, none := r.part("spec_method", p.config, "speculative_config"); none {
		c.SpecMethod, c.SpecTokens = ptr(noneOf), ptr(int64(0))
	} else if spec.Addr() != 0 {
		c.SpecMethod = get(&r, "spec_method", python.Value.Str, spec, "method")
		c.SpecTokens = get(&r, "spec_tokens", python.Value.Int, spec, "num_speculative_tokens")
	}
	if kv, none := r.part("kv_connector", p.config, "kv_transfer_config"); none {
		c.KVConnector = ptr(noneOf)
	} else if kv.Addr() != 0 {
		if _, none := r.part("kv_connector", kv, "kv_connector"); none {
			c.KVConnector = ptr(noneOf)
		} else {
			c.KVConnector = get(&r, "kv_connector", python.Value.Str, kv, "kv_connector")
			c.KVRole = get(&r, "kv_role", python.Value.Str, kv, "kv_role")
		}
	}
	if p.connected() {
		for n, name := range p.status {
			if name == statusRemoteKVs {
				c.RemoteKVs = ptr(n)
			}
		}
	}
	if lora, none := r.part("lora", p.config, "lora_config"); none || lora.Addr() != 0 {
		c.LoRA = ptr(!none)
	}
	if len(r.missing) > 0 {
		c.Missing = r.missing
	}
	return c
}

// dataParallel reads how many engine cores share the requests. A core of a dense model
// works alone and sets the size in its own configuration to 1, but the bound of an
// elastic group, which is the size unless elasticity is on, stays as it was.
func (p *Peeker) dataParallel(r *lookup) *int64 {
	size := get(r, "data_parallel", python.Value.Int, p.config, "parallel_config", "data_parallel_size")
	if size == nil || *size != 1 {
		return size
	}
	none := &lookup{}
	elastic := get(none, "", python.Value.Bool, p.config, "parallel_config", "enable_elastic_ep")
	bound := get(none, "", python.Value.Int, p.config, "parallel_config", "elastic_ep_max_dp_size")
	if bound != nil && elastic != nil && !*elastic {
		return bound
	}
	if index := get(none, "", python.Value.Int, p.config, "parallel_config", "data_parallel_index"); index != nil {
		// This core may be one of several, or the only one.
		r.miss("data_parallel", errors.New("the core's own configuration does not keep it"))
		return nil
	}
	return size
}

// lookup collects what could not be read.
type lookup struct{ missing map[string]string }

func (r *lookup) miss(name string, err error) {
	if r.missing != nil {
		r.missing[name] = err.Error()
	}
}

// get reads one value; nil if it cannot be read, or is None.
func get[T any](r *lookup, name string, as func(python.Value) (T, error), v python.Value, path ...string) *T {
	v, err := v.Path(path...)
	if err == nil && v.Addr() != 0 && v.IsNone() {
		return nil
	}
	if err == nil {
		var t T
		if t, err = as(v); err == nil {
			delete(r.missing, name)
			return &t
		}
	}
	r.miss(name, err)
	return nil
}

// part follows a path to an object that may be None.
func (r *lookup) part(name string, v python.Value, path ...string) (part python.Value, none bool) {
	v, err := v.Path(path...)
	if err != nil {
		r.miss(name, err)
		return python.Value{}, false
	}
	if v.IsNone() {
		return python.Value{}, true
	}
	return v, false
}

func ptr[T any](v T) *T { return &v }

// pools are the places of the pool of KV blocks (0.9 on; before that).
var pools = [][]string{
	{"kv_cache_manager", "block_pool"},
	{"kv_cache_manager", "coordinator", "block_pool"},
}

func (p *Peeker) pool() (python.Value, error) {
	var first error
	for _, path := range pools {
		v, err := p.sched.Path(path...)
		if err == nil {
			return v, nil
		}
		if first == nil {
			first = err
		}
	}
	return python.Value{}, first
}

func (p *Peeker) blocks() (*int64, error) {
	pool, err := p.pool()
	if err != nil {
		return nil, err
	}
	v, err := pool.Attr("num_gpu_blocks")
	if err != nil {
		return nil, err
	}
	n, err := v.Int()
	return &n, err
}

// State reads the state of the core; what cannot be read now is left out. The
// error says that nothing could.
func (p *Peeker) State() (note.State, error) {
	var s note.State
	r := lookup{}
	var err error
	if s.Running, err = p.length("running"); err != nil {
		return s, fmt.Errorf("reading the state of the scheduler: %w", err)
	}
	s.Step = get(&r, "", python.Value.Int, p.sched, "current_step")
	s.Waiting, s.Deferred = p.waiting()
	if pool, err := p.pool(); err == nil {
		s.Blocks = get(&r, "", python.Value.Int, pool, "num_gpu_blocks")
		s.FreeBlocks = get(&r, "", python.Value.Int, pool, "free_block_queue", "num_free_blocks")
	}
	return s, nil
}

// waiting gives the requests that wait for their turn and those put off, as the
// engine counts them: 0.32 has all of them in two queues and those put off in a
// set as well, earlier versions have the latter in a queue of their own or
// nowhere.
func (p *Peeker) waiting() (waiting, deferred *int64) {
	n, err := p.length("waiting")
	if err != nil {
		return nil, nil
	}
	switch holding, err := p.length("kv_holding_waiting"); {
	case err == nil:
		*n += *holding
		d, err := p.length("deferred_waiting")
		if err != nil || *d > *n {
			return nil, nil // read at different moments
		}
		*n -= *d
		return n, d
	case !errors.Is(err, python.ErrNotFound):
		return nil, nil
	}
	if d, err := p.length("skipped_waiting"); err == nil {
		return n, d
	}
	return n, nil
}

// length gives the number of elements of one of the scheduler's containers.
func (p *Peeker) length(name string) (*int64, error) {
	v, err := p.sched.Attr(name)
	if err != nil {
		return nil, err
	}
	n, err := size(v)
	if err != nil {
		return nil, err
	}
	return ptr(int64(n)), nil
}

// size gives the length of a list, set, deque or PriorityRequestQueue.
func size(v python.Value) (int, error) {
	n, err := v.Len()
	if !errors.Is(err, python.ErrType) {
		return n, err
	}
	heap, err := v.Attr("_heap")
	if err != nil {
		return 0, err
	}
	return heap.Len()
}

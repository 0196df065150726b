package correlate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"inferspan/correlate/signal"
)

// gpuKernels are the functions that the processes of an engine launched.
type gpuKernels struct {
	functions map[functionKey]*launched
	past      map[string]*launched // by symbol: of handles that are another function's now
	threads   []stepThread
	processes []uncounted
	ranks     []StepKernels // of workers that are processes of their own, in their order
	together  StepKernels   // of all of them in a step
	// reused are launches between the two looks of which the later one found another name.
	// full are those of functions beyond maxFunctions.
	reused, full calls
}

// calls are launches, by the host and as nodes of graphs.
type calls struct{ host, inGraphs int64 }

func (c calls) all() int64 { return c.host + c.inGraphs }

func (c *calls) add(o calls) { c.host, c.inGraphs = c.host+o.host, c.inGraphs+o.inGraphs }

// tally is a count that is told in all, and begins anew with the probes.
type tally struct{ last, n int64 }

// more takes what is told, and returns what came since.
func (c *tally) more(told int64) int64 {
	more := told - c.last
	if more < 0 {
		more = told
	}
	c.last = told
	c.n += more
	return more
}

type functionKey struct {
	handle  uint64
	pid     uint32
	runtime bool
}

// launched is a function.
type launched struct {
	symbol, name, by string
	host, inGraphs   tally
	n                calls
}

// stepThread is a thread that begins steps.
type stepThread struct {
	pid, tid uint32
	marks    uint32
	steps    int64 // begun while launches were counted
	lost     bool  // not all were seen
}

// uncounted is what a process had no room for.
type uncounted struct {
	pid             uint32
	beyond, unnoted int64
	// Launches of graphs: those that inGraphs is of, and the others by reason.
	graphs, unseen, changed, noRoom tally
}

// maxFunctions bounds the functions of an engine: twice what the kernel has room for.
const maxFunctions = 16384

// maxStepThreads bounds the threads of an engine that begin steps: one for each core.
const maxStepThreads = 256

func (c *Correlator) gpuKernels(s *signal.GPUKernels) {
	k := &c.engine(s.Engine).kernels
	if k.functions == nil {
		k.functions, k.past = make(map[functionKey]*launched), make(map[string]*launched)
	}
	at := slices.IndexFunc(k.processes, func(u uncounted) bool { return u.pid == s.PID })
	if at < 0 {
		at = len(k.processes)
		k.processes = append(k.processes, uncounted{pid: s.PID})
	}
	u := &k.processes[at]
	u.beyond, u.unnoted = max(u.beyond, s.Beyond.V), max(u.unnoted, s.Unnoted.V)
	for _, g := range []struct {
		c    *tally
		told signal.Opt[int64]
	}{{&u.graphs, s.Graphs}, {&u.unseen, s.GraphsUnseen}, {&u.changed, s.GraphsChanged}, {&u.noRoom, s.GraphsBeyond}} {
		if g.told.OK {
			g.c.more(g.told.V)
		}
	}
	for i := range s.Kernels {
		k.add(s.PID, &s.Kernels[i])
	}
}

func (k *gpuKernels) add(pid uint32, s *signal.GPUKernel) {
	if !s.Launches.OK {
		return
	}
	key := functionKey{s.Handle, pid, s.Runtime}
	f := k.functions[key]
	if f == nil {
		if len(k.functions) == maxFunctions {
			k.full.add(calls{s.Launches.V, s.InGraphs.V})
			return
		}
		f = &launched{}
		k.functions[key] = f
	}
	more := calls{host: f.host.more(s.Launches.V)}
	if s.InGraphs.OK {
		more.inGraphs = f.inGraphs.more(s.InGraphs.V)
	}
	if s.Symbol == "" || s.Symbol == f.symbol {
		f.n.add(more)
		return
	}
	if f.symbol != "" {
		// The handle was freed and given again in between.
		k.reused.add(more)
		more = calls{}
		if f.n.all() > 0 && (k.past[f.symbol] != nil || len(k.past) < maxFunctions) {
			old := k.past[f.symbol]
			if old == nil {
				old = &launched{symbol: f.symbol, name: f.name, by: f.by}
				k.past[f.symbol] = old
			}
			old.n.add(f.n)
		}
		f.n = calls{}
	}
	f.symbol, f.name, f.by = strings.Clone(s.Symbol), strings.Clone(s.Name), strings.Clone(s.By)
	f.n.add(more)
}

// mark takes the steps in, over which launches are divided. Those of workers that are
// processes of their own are not known by their marks, but by their passes.
func (k *gpuKernels) mark(s *signal.GPUMark) {
	step := s.Step == signal.StepBegins || s.Step == signal.StepLaunched
	at := slices.IndexFunc(k.threads, func(t stepThread) bool { return t.pid == s.PID && t.tid == s.TID })
	if at < 0 {
		if !step || len(k.threads) == maxStepThreads {
			return
		}
		at = len(k.threads)
		k.threads = append(k.threads, stepThread{pid: s.PID, tid: s.TID, marks: s.Marks - 1})
	}
	t := &k.threads[at]
	t.lost = t.lost || s.Marks != t.marks+1
	t.marks = s.Marks
	if step && s.Launches {
		t.steps++
	}
}

// workers takes in the passes of a step, which so many workers have executed. Those in which
// not all launches were counted are left out, and then the step is.
func (k *gpuKernels) workers(passes []workerPass, workers int) {
	whole, sum := len(passes) == workers, int64(0)
	for _, p := range passes {
		if !p.launches() {
			whole = false
			continue
		}
		n := p.to.Work.Less(p.from.Work).Kernels
		sum += n
		if !p.rank.OK {
			continue
		}
		at, ok := slices.BinarySearchFunc(k.ranks, p.rank.V, func(r StepKernels, rank int64) int { return cmp.Compare(r.Rank, rank) })
		if !ok {
			k.ranks = slices.Insert(k.ranks, at, StepKernels{Rank: p.rank.V})
		}
		k.ranks[at].Steps++
		k.ranks[at].Kernels += n
	}
	if whole && workers > 0 {
		k.together.Steps++
		k.together.Kernels += sum
	}
}

// EngineKernels is what a summary says of the kernels that an engine launched while that
// was counted: those that the host called for one by one, and nodes of graphs, as far as
// the functions of these are known.
type EngineKernels struct {
	Model    string        `json:"model"`
	Kernels  []KernelCount `json:"kernels"`             // the most launched first
	Launches int64         `json:"launches"`            // by the host
	InGraphs int64         `json:"in_graphs,omitempty"` // as nodes of graphs
	Unnamed  int64         `json:"unnamed"`             // of both, those of kernels without a name
	// Graphs are the launches of graphs that InGraphs is of. Of the others it is not known
	// what they launched: the graph was not seen being made while all launches were counted,
	// it was made or changed node by node, or there was no room for it.
	Graphs        int64 `json:"graphs,omitempty"`
	GraphsUnseen  int64 `json:"graphs_unseen,omitempty"`
	GraphsChanged int64 `json:"graphs_changed,omitempty"`
	GraphsBeyond  int64 `json:"graphs_beyond,omitempty"`
	// Reused are launches of which it is not known which of two names is theirs; Beyond
	// those that are not counted by kernel, for lack of room. They are in Launches and
	// InGraphs, and in no kernel.
	Reused         int64 `json:"reused,omitempty"`
	ReusedInGraphs int64 `json:"reused_in_graphs,omitempty"`
	Beyond         int64 `json:"beyond,omitempty"`
	BeyondInGraphs int64 `json:"beyond_in_graphs,omitempty"`
	Unnoted        int64 `json:"unnoted,omitempty"` // names that were given out and not noted, for lack of room
	// Steps began while launches were counted; 0 if that is not known.
	Steps int64 `json:"steps,omitempty"`
	// Together and Ranks are of steps that workers execute that are processes of their own:
	// what all of them launched, over the steps of which each one's pass was seen whole, and
	// what each did, over those of which its own was.
	Together StepKernels   `json:"together,omitzero"`
	Ranks    []StepKernels `json:"ranks,omitempty"`
}

// StepKernels are kernels that were launched one by one in some steps.
type StepKernels struct {
	Rank    int64 `json:"rank"`
	Steps   int64 `json:"steps"`
	Kernels int64 `json:"kernels"`
}

// KernelCount is a kernel.
type KernelCount struct {
	Name     string `json:"name"`             // as in the source, without parameters; of one without a name its handle
	Symbol   string `json:"symbol,omitempty"` // the driver's name, "" if it is not known
	By       string `json:"by,omitempty"`     // how it is known
	Launches int64  `json:"launches"`
	InGraphs int64  `json:"in_graphs,omitempty"`
}

// Kernels returns those of each engine that has some.
func (c *Correlator) Kernels() []EngineKernels {
	var out []EngineKernels
	for _, e := range c.engines {
		if s := e.kernels.summary(); s.Launches+s.InGraphs > 0 {
			s.Model = e.model
			out = append(out, s)
		}
	}
	return out
}

func (k *gpuKernels) summary() EngineKernels {
	s := EngineKernels{Launches: k.reused.host + k.full.host, InGraphs: k.reused.inGraphs + k.full.inGraphs,
		Reused: k.reused.host, ReusedInGraphs: k.reused.inGraphs, Beyond: k.full.host, BeyondInGraphs: k.full.inGraphs,
		Together: k.together, Ranks: slices.Clone(k.ranks)}
	by := make(map[string]*KernelCount)
	take := func(name, id string, f *launched) {
		s.Launches += f.n.host
		s.InGraphs += f.n.inGraphs
		c := by[id]
		if c == nil {
			c = &KernelCount{Name: name, Symbol: f.symbol, By: f.by}
			by[id] = c
		}
		c.Launches += f.n.host
		c.InGraphs += f.n.inGraphs
		c.By = min(c.By, f.by) // of two ways always the same one
	}
	for key, f := range k.functions {
		switch {
		case f.n.all() == 0:
		case f.symbol == "":
			name := fmt.Sprintf("unknown (handle %#x)", key.handle)
			take(name, fmt.Sprint(name, " of ", key.pid), f)
			s.Unnamed += f.n.all()
		default:
			take(f.name, "symbol "+f.symbol, f)
		}
	}
	for _, f := range k.past {
		take(f.name, "symbol "+f.symbol, f)
	}
	for _, u := range k.processes {
		s.Launches += u.beyond
		s.Beyond += u.beyond
		s.Unnoted += u.unnoted
		s.Graphs += u.graphs.n
		s.GraphsUnseen += u.unseen.n
		s.GraphsChanged += u.changed.n
		s.GraphsBeyond += u.noRoom.n
	}
	for _, c := range by {
		s.Kernels = append(s.Kernels, *c)
	}
	slices.SortFunc(s.Kernels, func(a, b KernelCount) int {
		return cmp.Or(cmp.Compare(b.Launches+b.InGraphs, a.Launches+a.InGraphs), cmp.Compare(b.Launches, a.Launches), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Symbol, b.Symbol))
	})
	for _, t := range k.threads {
		// Ranks that launch the same steps have means of their own.
		if t.lost || len(k.ranks) > 0 {
			s.Steps = 0
			break
		}
		s.Steps += t.steps
	}
	return s
}

// Package governor keeps what probes cost their target within a budget.
//
// A probe on a function that Python code calls traps on each call, whoever calls.
// Calls by code that works cost work: the time they take is lost to the engine.
// Calls by code that only waits (a loop that reads the clock until something
// happens) cost nothing until the wait ends, and then at most one turn of the
// loop; they are told apart by their code objects.
//
// Over budget the probe that costs most looks at less, where it has something lighter to
// do and its captures are what costs too much, and else is taken out, with what is lost
// named. More is tried again later, at growing distances. Where it is enough that ladders, which are
// for more detail, step down, they do.
package governor

import (
	"fmt"
	"sort"
	"time"

	"inferspan/probes/attach"
)

// Budget is what probes may cost one process.
type Budget struct {
	Work float64       // share of one core lost to calls by code that works
	Wait time.Duration // added to one turn of a loop that waits
}

// DefaultBudget is below what a user could tell from noise.
var DefaultBudget = Budget{Work: 0.01, Wait: 20 * time.Microsecond}

// Times of the state machine. Two windows over the budget in a row are needed, so
// that a burst (a start-up, a garbage collection) costs no detail.
const (
	strikes  = 2
	retry    = 30 * time.Second
	maxRetry = 10 * time.Minute
)

// Prober is the part of attach.Interpreter that is needed.
type Prober interface {
	Hits() ([]attach.CodeHits, error)
	Use(n int) (attach.Use, error)
	Detach(n int, reason string) error
	Reattach(n int) error
	Lighten(n, level int, reason string) error
	CodeName(code uint64) (name, file string, err error)
}

// Probe is a probe to watch over.
type Probe struct {
	N      int    // its position in the report of attach.Interpreter
	Number uint32 // its number in hits
	Detail string // what is lost without it
	// PerTurn is how often a waiting loop calls the function each time round; 0: as
	// the hits say.
	PerTurn int
	// Levels is how many lighter things it has to look at, each lighter than the one
	// before.
	Levels int
	// Stepped and Shared are as in attach.PythonStatus.
	Stepped, Shared bool
	// Out: it is not in place and others put it in, see Governor.Told.
	Out bool
}

// Change is a probe that was taken out or put back, or that looks at less or more.
type Change struct {
	Probe    Probe
	Attached bool
	// Moved: it is in place as before, and looks at other things. Level is 0 for all, or
	// which of the lighter ones.
	Moved  bool
	Level  int
	Reason string // why it was taken out, or looks at less
}

// Window is what a probe cost in the time between two ticks.
type Window struct {
	Probe   Probe
	Work    uint64 // calls by code that works, or that is not known
	Waiting uint64 // calls by code that waits
	// PerTurn is how often a loop that waits calls each time round: a loop goes
	// through several functions, of which each calls once a turn at most.
	PerTurn float64
	Cost    time.Duration // of a hit, on average, but for what is captured
	// Captured is the time in captures. It counts as work: waiting code is not watched.
	Captured time.Duration
	Share    float64 // of one core, by the calls that work
	Looking  float64 // of it, by captures
	Caller   string  // code that works and calls most, "" if there is none
}

// Governor watches over the probes of one process. It is for one goroutine.
type Governor struct {
	prober  Prober
	budget  Budget
	costs   Costs
	waiting func(name, file string) bool
	probes  []*state
	ladders []*climber
	codes   map[uint64]code
	last    int64
}

type state struct {
	Probe
	attached bool
	lighter
	use     attach.Use // up to the last tick
	codes   map[uint64]uint64
	strikes int
	retryAt int64
	pause   time.Duration
}

type code struct {
	name    string
	waiting bool
}

// New makes a governor for probes that are attached, but for those that are Out. waiting tells code that only waits
// by its qualified name and file. p is not needed without probes.
func New(p Prober, b Budget, costs Costs, waiting func(name, file string) bool, probes ...Probe) *Governor {
	g := &Governor{prober: p, budget: b, costs: costs, waiting: waiting, codes: make(map[uint64]code)}
	for _, x := range probes {
		g.probes = append(g.probes, &state{Probe: x, attached: !x.Out, codes: make(map[uint64]uint64), pause: retry, retryAt: never})
	}
	return g
}

// Told says that others have put probe n of the report in or out. One that is out
// stays so until they put it in.
func (g *Governor) Told(n int, attached bool) {
	if s := g.state(n); s != nil {
		s.attached, s.strikes, s.use, s.retryAt = attached, 0, attach.Use{}, never
		if attached && s.level > 0 {
			s.retryAt, s.tryBy = g.last, g.last+int64(maxRetry)
		}
	}
}

// Tick looks at the hits since the last tick and acts. at is CLOCK_MONOTONIC, ns;
// ticks should be about a second apart. The windows are those of attached probes.
func (g *Governor) Tick(at int64) ([]Window, []Change, error) {
	var hits []attach.CodeHits
	if len(g.probes) > 0 {
		var err error
		if hits, err = g.prober.Hits(); err != nil {
			return nil, nil, fmt.Errorf("reading hits: %w", err)
		}
	}
	if err := g.look(at); err != nil {
		return nil, nil, err
	}
	elapsed := at - g.last
	first := g.last == 0
	g.last = at
	var windows []Window
	for _, s := range g.probes {
		if !s.attached {
			continue
		}
		w, err := g.window(s, hits)
		if err != nil {
			return nil, nil, err
		}
		if first || elapsed <= 0 {
			continue
		}
		w.Share = (float64(w.Work)*float64(w.Cost) + float64(w.Captured)) / float64(elapsed)
		w.Looking = float64(w.Captured) / float64(elapsed)
		s.learn(w.Share)
		windows = append(windows, w)
	}
	if first {
		return nil, nil, nil
	}
	changes, err := g.judge(at, windows)
	if err != nil {
		return windows, changes, err
	}
	back, err := g.again(at)
	if len(changes) == 0 && err == nil {
		var more []Change
		more, err = g.more(at, windows)
		back = append(back, more...)
	}
	if err == nil {
		err = g.climb(at)
	}
	return windows, append(changes, back...), err
}

// window sums up the calls of one probe since the last tick.
func (g *Governor) window(s *state, hits []attach.CodeHits) (Window, error) {
	use, err := g.prober.Use(s.N)
	if err != nil {
		return Window{}, fmt.Errorf("reading hits of the probe for %s: %w", s.Detail, err)
	}
	all := use.Hits - min(use.Hits, s.use.Hits)
	w := Window{Probe: s.Probe, Captured: use.Captured - min(use.Captured, s.use.Captured)}
	w.Cost = g.cost(s.Probe, all, min(use.Returns-min(use.Returns, s.use.Returns), all))
	s.use = use
	var most, mostWaiting uint64
	for _, h := range hits {
		if h.Probe != s.Number {
			continue
		}
		n := h.Count - min(h.Count, s.codes[h.Code])
		s.codes[h.Code] = h.Count
		if n == 0 {
			continue
		}
		c := g.code(h.Code)
		if c.waiting {
			w.Waiting += n
			mostWaiting = max(mostWaiting, n)
			continue
		}
		if n > most {
			most, w.Caller = n, c.name
		}
	}
	// What no code object accounts for counts as work.
	w.Waiting = min(w.Waiting, all)
	switch {
	case s.PerTurn > 0:
		w.PerTurn = float64(s.PerTurn)
	case mostWaiting > 0:
		w.PerTurn = float64(w.Waiting) / float64(mostWaiting)
	}
	w.Work = all - w.Waiting
	return w, nil
}

// cost is what a hit costs on average, of so many and so many of these at returns.
func (g *Governor) cost(p Probe, all, returns uint64) time.Duration {
	entry := g.costs.Emulated + g.costs.Run
	switch {
	case p.Shared:
		entry = g.costs.Run
	case p.Stepped:
		entry = g.costs.Stepped + g.costs.Run
	}
	if all == 0 {
		return entry
	}
	at := float64(returns) / float64(all)
	return time.Duration((1-at)*float64(entry) + at*float64(g.costs.Stepped+g.costs.Run))
}

func (g *Governor) code(addr uint64) code {
	c, ok := g.codes[addr]
	if ok {
		return c
	}
	if name, file, err := g.prober.CodeName(addr); err == nil && addr != 0 {
		c = code{name, g.waiting(name, file)}
	} else {
		c = code{name: "code that cannot be named"}
	}
	// An address can come to hold another code object; names are asked for again
	// after a while. 4096 is more code than calls one function in practice.
	if len(g.codes) >= 4096 {
		clear(g.codes)
	}
	g.codes[addr] = c
	return c
}

// judge has probes look at less, or takes them out, that cost too much, the one that costs
// most first; ladders step down, before all others where that is enough.
func (g *Governor) judge(at int64, windows []Window) ([]Change, error) {
	total := 0.0
	type item struct {
		share  float64
		window *Window  // of a probe, or
		ladder *climber // this
	}
	var order []item
	for i := range windows {
		order = append(order, item{share: windows[i].Share, window: &windows[i]})
	}
	ladders := 0.0
	for _, c := range g.ladders {
		order = append(order, item{share: c.share, ladder: c})
		ladders += c.share
	}
	for _, x := range order {
		total += x.share
	}
	enough := total-ladders <= g.budget.Work
	sort.SliceStable(order, func(a, b int) bool {
		if one, other := order[a].ladder != nil, order[b].ladder != nil; enough && one != other {
			return one
		}
		return order[a].share > order[b].share
	})
	var changes []Change
	for _, x := range order {
		if x.ladder != nil {
			dealt, err := g.judgeLadder(x.ladder, at, total)
			if err != nil {
				return changes, err
			}
			if dealt {
				total -= x.share
			}
			continue
		}
		w := x.window
		s := g.state(w.Probe.N)
		reason, late := "", false
		switch turn := time.Duration(w.PerTurn * float64(w.Cost)); {
		case w.Waiting > 0 && turn > g.budget.Wait:
			late = true
			reason = fmt.Sprintf("a loop that waits would wake up to %v late, the budget is %v", turn.Round(100*time.Nanosecond), g.budget.Wait)
		case total > g.budget.Work && w.Share > 0:
			reason = fmt.Sprintf("calls by %s cost %.1f %% of a core, the budget is %.1f %%", w.Caller, 100*w.Share, 100*g.budget.Work)
		}
		if reason == "" {
			s.strikes = 0
			continue
		}
		if s.strikes++; s.strikes < strikes {
			total -= w.Share // the others are judged as if it were gone
			continue
		}
		change, err := g.less(s, w, reason, late)
		if err != nil {
			return changes, err
		}
		s.strikes = 0
		s.retryAt, s.tryBy = at+int64(s.pause), at+int64(maxRetry)
		s.pause = min(2*s.pause, maxRetry)
		total -= w.Share
		changes = append(changes, change)
	}
	return changes, nil
}

// again puts probes back whose pause is over.
func (g *Governor) again(at int64) ([]Change, error) {
	var changes []Change
	for _, s := range g.probes {
		if s.attached || at < s.retryAt {
			continue
		}
		if err := g.prober.Reattach(s.N); err != nil {
			s.retryAt = at + int64(s.pause)
			return changes, fmt.Errorf("putting the probe for %s back: %w", s.Detail, err)
		}
		s.attached, s.use, s.retryAt = true, attach.Use{}, never
		if s.level > 0 {
			s.retryAt, s.tryBy = at+int64(s.pause), at+int64(maxRetry)
		}
		changes = append(changes, Change{Probe: s.Probe, Attached: true})
	}
	return changes, nil
}

func (g *Governor) state(n int) *state {
	for _, s := range g.probes {
		if s.N == n {
			return s
		}
	}
	return nil
}

package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"inferspan/tests/collectortest"
)

// twins pairs the engine's own trees with ours, and the spans in them.
type twins struct {
	f    *faults
	byID map[string]*otel // ours and the engine's

	native, ours    int // spans in trees
	paired          int
	missing, beyond map[string]int // of the engine's own without a twin, of ours without one
	starts, ends    map[string]*differences
	numbers         map[string]*differences
	placed          map[string]int // events that are on another span than the engine's
	known           map[string]int // differences that are the engine's own, or documented
	nativeTrees     []*otelTree
	joined          []joined
	silent          map[*otel]*otel // the engine's threads of ranks that send nothing and what is on them, by span
}

const (
	// A twin is sought this far away; what is beyond 1 ms and 1 % is a fault.
	seek      = int64(200e6)
	tolerance = int64(1e6)
	// A batch is put together some time before it is launched: if the results of the batch
	// before it are waited for in between, as long as that runs. The engine keeps the former
	// moment only when it traces.
	launched = int64(500e6)
)

func (w *twins) find(t *testing.T, native, ours []collectortest.Span) {
	theirs, mine := treesOf(native), treesOf(ours)
	w.missing, w.beyond, w.placed, w.known = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	byRID := map[string]*otelTree{}
	for _, x := range mine {
		if x.root == nil {
			w.f.add("threads of ours are below no request: %s", x.threads[0].Name)
			continue
		}
		if byRID[x.rid()] != nil {
			w.f.add("request %s has two spans of ours", x.rid())
		}
		byRID[x.rid()] = x
	}
	for _, n := range theirs {
		if n.root == nil {
			continue
		}
		if m := byRID[n.rid()]; m != nil && m.twin == nil {
			n.twin, m.twin = m, n
		}
	}
	theirs = w.warmUps(theirs)
	theirs = slices.DeleteFunc(theirs, w.neverSent)
	// What the engine did not end has no id; it began when its front end began with it.
	for _, n := range theirs {
		if n.root != nil {
			continue
		}
		for _, m := range mine {
			if m.root != nil && m.twin == nil && near(m.start(), n.start(), 0) && sameThreads(n, m) {
				n.twin, m.twin = m, n
				break
			}
		}
	}
	w.nativeTrees = theirs
	w.silent = map[*otel]*otel{}
	for _, n := range theirs {
		for _, th := range n.threads {
			if rank, err := toFloat(th.Attrs["tp_rank"]); err != nil || rank == 0 {
				continue
			}
			w.silent[th] = th
			for _, s := range th.stages() {
				w.silent[s] = th
			}
		}
	}
	w.starts, w.ends, w.numbers = map[string]*differences{}, map[string]*differences{}, map[string]*differences{}
	w.byID = map[string]*otel{}
	for _, list := range [][]*otelTree{theirs, mine} {
		for _, x := range list {
			x.each(func(s *otel) { w.byID[s.TraceID+s.SpanID] = s })
		}
	}
	for _, j := range w.joined {
		w.byID[j.gone.TraceID+j.gone.SpanID] = j.stays
	}
	for _, n := range theirs {
		n.each(func(*otel) { w.native++ })
		if n.twin != nil {
			w.pair(n)
		} else {
			w.f.add("request %s, begun at %d: the engine has a tree, we have none", n.rid(), n.start())
			n.each(func(s *otel) { w.missing[s.layer()]++ })
		}
	}
	for _, m := range mine {
		m.each(func(s *otel) {
			w.ours++
			if s.twin == nil {
				w.beyond[s.layer()]++
			}
		})
	}
}

// warmUps joins what the engine makes of one request in two trees: before it samples
// several choices of a prompt it sends the prompt with an id of its own and no tokens to
// generate. It ends that request, but hands the time stats of the first id on.
func (w *twins) warmUps(theirs []*otelTree) []*otelTree {
	return slices.DeleteFunc(theirs, func(n *otelTree) bool {
		if n.root == nil || n.twin != nil {
			return false
		}
		for _, x := range theirs {
			if x.twin == nil || x.root == nil || !warmUp(x) || !near(x.start(), n.start(), 0) || len(x.threads) != 1 {
				continue
			}
			x.threads = n.threads
			for _, th := range n.threads {
				th.tree = x
			}
			w.joined = append(w.joined, joined{n.root, x.root})
			w.known["requests that sample several choices have their warm-up in two trees"]++
			return true
		}
		return false
	})
}

// joined are two spans of the engine's that stand for one.
type joined struct{ gone, stays *otel }

// warmUp: no tokens are asked for, as we see it.
func warmUp(t *otelTree) bool {
	v, err := toFloat(t.twin.root.Attrs["gen_ai.request.max_tokens"])
	return err == nil && v == 0
}

// neverSent: the front end began with a request that is there for the bookkeeping of
// several choices, and forgot it.
func (w *twins) neverSent(n *otelTree) bool {
	if n.root != nil || n.twin != nil || len(n.threads) != 1 || !autoClosed(n.threads[0]) || len(n.threads[0].children) != 1 {
		return false
	}
	w.known["requests that were never sent"]++
	return true
}

// dispatchedWithin: the engine has the handing over below tokenize.
func dispatchedWithin(t *otelTree) bool {
	for _, th := range t.threads {
		for _, s := range th.children {
			if s.Name == "tokenize" && len(s.children) > 0 {
				return true
			}
		}
	}
	return false
}

// endsByChance says that s is auto-closed, or what lasts until the thread that is.
func endsByChance(s *otel, t *otelTree) bool {
	for _, th := range t.threads {
		if autoClosed(th) && (s == th || slices.Contains(th.stages(), s) && s.End == th.End) {
			return true
		}
	}
	return false
}

// sameThreads: the front end is the same, and the trees are of one trace if the client said so.
func sameThreads(n, m *otelTree) bool {
	for _, a := range n.threads {
		if !slices.ContainsFunc(m.threads, func(b *otel) bool { return plainName(a) == plainName(b) }) {
			return false
		}
	}
	return true
}

// pair pairs the spans of two trees: those of a name in a thread by their times, the
// nearest first, so that one that is missing does not shift the others.
func (w *twins) pair(n *otelTree) {
	m := n.twin
	if n.root != nil {
		n.root.twin, m.root.twin = m.root, n.root
	}
	w.nearest(n.threads, m.threads, n)
	for _, th := range n.threads {
		if th.twin == nil {
			if w.silent[th] != nil && endsAtOnce(n) && unseen(th, n.twin) {
				continue
			}
			for _, s := range th.stages() {
				w.missing[s.layer()]++
			}
			continue
		}
		w.nearest(th.stages(), th.twin.stages(), n)
	}
	n.each(func(s *otel) {
		if s.twin != nil {
			w.paired++
			w.compare(s, n)
		}
	})
	w.events(n)
}

func (w *twins) nearest(theirs, mine []*otel, n *otelTree) {
	type edge struct {
		a, b *otel
		cost int64
	}
	var edges []edge
	for _, a := range theirs {
		for _, b := range mine {
			cost := max(a.Start-b.Start, b.Start-a.Start) + max(a.End-b.End, b.End-a.End)
			if plainName(a) == plainName(b) && (cost < seek || a.layer() != a.Name) {
				edges = append(edges, edge{a, b, cost})
			}
		}
	}
	slices.SortStableFunc(edges, func(x, y edge) int { return cmp.Compare(x.cost, y.cost) })
	for _, e := range edges {
		if e.a.twin == nil && e.b.twin == nil {
			e.a.twin, e.b.twin = e.b, e.a
		}
	}
	for _, a := range theirs {
		switch {
		case a.twin != nil:
		case a.Name == "decode_loop" && marked(n.twin):
			w.known["decode_loop of the last results of a request that does not stream, said to be missing"]++
		case w.silent[a] != nil && w.silent[a] != a && w.silent[a].twin != nil && silentStages[a.Name] && says(w.silent[a].twin):
			w.known["stages of ranks that send nothing, said to be missing"]++
		case w.silent[a] == a && endsAtOnce(n) && unseen(a, n.twin):
			w.known["threads of ranks that send nothing, of requests that run no batch there, said to be missing"]++
		case a.Name == "api_server_dispatch" && warmUp(n):
			w.known["api_server_dispatch of warm-ups, whose stamps nothing leads to"]++
		default:
			w.missing[a.layer()]++
		}
	}
}

// silentStages are those that only what is sent shows, the stamps of several of them on a
// decode server.
var silentStages = map[string]bool{
	"decode_loop": true, "prefill_forward": true, "prefill_transfer_kv_cache": true,
	"decode_prepare": true, "decode_bootstrap": true, "decode_transferred": true,
}

// endsAtOnce: the first token, which another server may have computed, is the last.
func endsAtOnce(n *otelTree) bool {
	if n.root == nil {
		return false
	}
	tokens, err := toFloat(n.root.Attrs["gen_ai.usage.completion_tokens"])
	return err == nil && tokens == 1
}

// unseen: our request says that nothing of it was seen in the rank of the engine's thread.
func unseen(thread *otel, mine *otelTree) bool {
	rank, _, _ := strings.Cut(thread.Name, "(host:")
	list, _ := mine.root.Attrs["inferspan.unavailable"].([]any)
	return slices.ContainsFunc(list, func(x any) bool {
		return strings.HasPrefix(fmt.Sprint(x), strings.Join(strings.Fields(rank), " ")+": ")
	})
}

// marked: a scheduler's thread says that stages of it were not seen.
func marked(t *otelTree) bool { return slices.ContainsFunc(t.threads, says) }

func says(thread *otel) bool {
	label, _ := thread.Attrs["thread_label"].(string)
	return strings.HasSuffix(label, "Scheduler") && strings.Contains(fmt.Sprint(thread.Attrs["inferspan.partial"]), "stages")
}

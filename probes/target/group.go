package target

import (
	"cmp"
	"slices"
)

// maxDepth bounds walks up the process tree.
const maxDepth = 64

// ancestor returns the nearest ancestor that runs code of an engine, or the process
// itself if it does; 0 if there is none.
func (s *scan) ancestor(pid int) int {
	for range maxDepth {
		if s.procs[pid] != nil {
			return pid
		}
		if pid <= 1 {
			return 0
		}
		pid = s.parent[pid]
	}
	return 0
}

// above returns the process of the same engine that a process was started from,
// nil if it is the first of its engine.
func (s *scan) above(p *proc) *proc {
	up := s.procs[s.ancestor(p.PPID)]
	switch {
	case up == nil:
		return nil
	case up.eng != p.eng:
		return nil
	case up.tree == manyTrees: // what it starts are engines of their own
		return nil
	case p.tree != inTree:
		return nil // a server of its own, whatever program started it
	}
	return up
}

// groups returns the processes by engine: oldest engine first, and in it the
// front ends before the cores before the workers.
func (s *scan) groups() [][]*proc {
	byRoot := make(map[int][]*proc)
	for _, p := range s.procs {
		root := p
		for range maxDepth {
			up := s.above(root)
			if up == nil {
				break
			}
			root = up
		}
		byRoot[root.PID] = append(byRoot[root.PID], p)
	}
	out := make([][]*proc, 0, len(byRoot))
	for root, g := range byRoot {
		s.frontEnd(s.procs[root], g)
		slices.SortFunc(g, func(a, b *proc) int {
			return cmp.Or(cmp.Compare(rank(a.Role), rank(b.Role)), cmp.Compare(a.Index, b.Index), a.Ranks.compare(b.Ranks), cmp.Compare(a.PID, b.PID))
		})
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b []*proc) int {
		first := func(g []*proc) *proc {
			return slices.MinFunc(g, func(a, b *proc) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID)) })
		}
		x, y := first(a), first(b)
		return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.PID, y.PID))
	})
	return out
}

// ranking is the order in which processes of an engine are listed: the way that a
// request takes.
var ranking = []Role{RoleGateway, RoleLauncher, RoleAPIServer, RoleOffline, RoleRouter, RoleCoordinator, RoleController, RoleCore, RoleWorker, RoleDetokenizer, RoleOther}

func rank(r Role) int {
	return slices.Index(ranking, r)
}

// frontEnd gives a role to the processes of a group that showed none: the first
// one, from which a core was started, serves HTTP or uses the engine as a library.
func (s *scan) frontEnd(root *proc, g []*proc) {
	core := slices.ContainsFunc(g, func(p *proc) bool { return p.Role == RoleCore })
	server := slices.ContainsFunc(g, func(p *proc) bool { return p.Role == RoleAPIServer })
	for _, p := range g {
		if p.Role != "" {
			continue
		}
		switch {
		case p != root || !core || server:
			p.Role = RoleOther
		case len(p.Ports) > 0 && p.imported("uvicorn"):
			p.Role = RoleAPIServer
		default:
			p.Role = RoleOffline
		}
	}
}

// imported reports whether the process has imported a module.
func (p *proc) imported(module string) bool {
	if p.interp == nil {
		return false
	}
	_, err := p.interp.Module(module)
	return err == nil
}

func (r Ranks) compare(o Ranks) int {
	at := func(n *int) int {
		if n == nil {
			return -1
		}
		return *n
	}
	return cmp.Or(cmp.Compare(at(r.DP), at(o.DP)), cmp.Compare(at(r.PP), at(o.PP)), cmp.Compare(at(r.TP), at(o.TP)))
}

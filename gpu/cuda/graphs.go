package cuda

import "inferspan/bpf"

// node is a function as a node of graphs.
type node struct {
	handle  uint64
	runtime bool
}

// graphs are the functions in the graphs that a process captured, by ID: how often each
// is launched when the graph is.
type graphs map[uint64]*graph

type graph struct {
	nodes    map[node]uint64
	children map[uint64]uint64 // graphs that are launched in it
}

// add takes what was captured since the last call.
func (g graphs) add(nodes []bpf.CUDANode) {
	for _, n := range nodes {
		in := g[n.Graph]
		if in == nil {
			in = &graph{nodes: make(map[node]uint64), children: make(map[uint64]uint64)}
			g[n.Graph] = in
		}
		if n.Child {
			in.children[n.Function] += n.Count
		} else {
			in.nodes[node{n.Function, n.Runtime}] += n.Count
		}
	}
	for _, n := range nodes {
		g.unfold(n.Graph)
	}
}

// unfold puts the functions of the graphs in a graph among its own.
func (g graphs) unfold(id uint64) {
	in := g[id]
	if in == nil {
		return // a graph without kernels
	}
	for child, times := range in.children {
		delete(in.children, child)
		if child >= id {
			continue // it was there before: none is in itself
		}
		g.unfold(child)
		if of := g[child]; of != nil {
			for f, n := range of.nodes {
				in.nodes[f] += n * times
			}
		}
	}
}

// launches returns how often each function was launched as a node.
func (g graphs) launches(of []bpf.CUDAGraph) map[node]uint64 {
	n := make(map[node]uint64)
	for _, one := range of {
		if in := g[one.ID]; in != nil && one.Launches > 0 {
			for f, times := range in.nodes {
				n[f] += times * one.Launches
			}
		}
	}
	return n
}

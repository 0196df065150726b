package attach

import (
	"inferspan/bpf"
	"inferspan/probes/target"
)

// Where is the place in a function that a probe stands at.
type Where int

// Places.
const (
	Entry Where = iota
	Return
)

func (w Where) String() string {
	if w == Return {
		return "return"
	}
	return "entry"
}

// Probe is a place in a library and the BPF program to run there.
type Probe struct {
	// Library finds the library in a process, nil if the process does not map it.
	Library func(*target.Process) *target.Library
	// LibraryName names it in reports.
	LibraryName string
	Symbol      string
	Where       Where
	Program     bpf.Program
	Tap         target.Tap // what it is for
	// Required makes Process fail without the probe; others are reported.
	Required bool
}

func (p Probe) String() string { return p.LibraryName + ":" + p.Symbol + " " + p.Where.String() }

func zmq(p *target.Process) *target.Library { return p.ZMQ }

// sent is a tap on what a process sends, received one on what it receives. The return
// comes before the entry, so that no call is noted whose return is not seen.
func sent(tap target.Tap) []Probe {
	return []Probe{{zmq, "libzmq", "zmq_msg_send", Entry, bpf.ProgWireSend, tap, true}}
}

func received(tap target.Tap) []Probe {
	return []Probe{
		{zmq, "libzmq", "zmq_msg_recv", Return, bpf.ProgWireRecvExit, tap, true},
		{zmq, "libzmq", "zmq_msg_recv", Entry, bpf.ProgWireRecvEnter, tap, true},
	}
}

// entry is what to put into processes of a role, and what the programs look at there.
type entry struct {
	probes []Probe
	role   bpf.Role
	// optional: without libzmq the rest of the role is worth having.
	optional bool
}

// plans by kind of engine and role. Roles that are not here have nothing to see.
var plans = map[string]map[target.Role]entry{
	// The core of vLLM waits in its receives: requests are seen where it gets them. A
	// front end gets one message a step.
	"vllm": {
		target.RoleCore:      {append(sent(target.TapOutputs), received(target.TapRequests)...), bpf.RoleCore, false},
		target.RoleAPIServer: {received(target.TapReceipts), bpf.RoleReceipt | bpf.RoleHTTP, true},
		target.RoleOffline:   {received(target.TapReceipts), bpf.RoleReceipt, false},
	},
	// The scheduler and the DP controller of SGLang poll their sockets without a pause
	// when idle: everything is seen where it is sent, for one trap a message. That is one
	// for a request in the front end, and in the DP controller; and one for a step in the
	// scheduler that gives outputs. What the detokenizer makes of them says nothing that the
	// scheduler did not, and the front end notes itself when it gets to it.
	"sglang": {
		target.RoleAPIServer:  {sent(target.TapRequests), bpf.RoleSend | bpf.RoleHTTP, true},
		target.RoleOffline:    {sent(target.TapRequests), bpf.RoleSend, false},
		target.RoleController: {sent(target.TapDispatch), bpf.RoleSend, false},
		target.RoleCore:       {sent(target.TapOutputs), bpf.RoleSend, false},
	},
}

// zmqRoles are those that need libzmq.
const zmqRoles = bpf.RoleCore | bpf.RoleReceipt | bpf.RoleSend

// Plan returns the probes for a process of an engine of the kind, and what the programs
// look at in it. Zero role: nothing is to be seen there.
func Plan(kind string, p *target.Process) ([]Probe, bpf.Role) {
	to, ok := plans[kind][p.Role]
	if !ok {
		return nil, 0
	}
	probes, role := to.probes, to.role
	if p.InProcess {
		return nil, role // it sends no messages, but its exit is to be seen
	}
	if p.TLS {
		role &^= bpf.RoleHTTP // what its sockets carry is encrypted
	}
	if p.ZMQ == nil && to.optional {
		// A front end with a ZeroMQ of its own: only HTTP is seen there.
		probes, role = nil, role&^zmqRoles
	}
	return probes, role
}

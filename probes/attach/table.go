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
	// Required makes Process fail without the probe; others are reported.
	Required bool
}

func (p Probe) String() string { return p.LibraryName + ":" + p.Symbol + " " + p.Where.String() }

func zmq(p *target.Process) *target.Library { return p.ZMQ }

// The taps on libzmq. The return comes before the entry, so that no call is
// noted whose return is not seen.
var (
	zmqSend  = Probe{zmq, "libzmq", "zmq_msg_send", Entry, bpf.ProgWireSend, true}
	zmqRecvd = Probe{zmq, "libzmq", "zmq_msg_recv", Return, bpf.ProgWireRecvExit, true}
	zmqRecv  = Probe{zmq, "libzmq", "zmq_msg_recv", Entry, bpf.ProgWireRecvEnter, true}
)

// Plan returns the probes for a process and what the programs look at in it.
// Zero role: nothing is to be seen there.
func Plan(p *target.Process) ([]Probe, bpf.Role) {
	switch p.Role {
	case target.RoleCore:
		if p.InProcess {
			return nil, bpf.RoleCore // it sends no messages, but its exit is to be seen
		}
		return []Probe{zmqSend, zmqRecvd, zmqRecv}, bpf.RoleCore
	case target.RoleAPIServer:
		role := bpf.RoleReceipt | bpf.RoleHTTP
		if p.TLS {
			role &^= bpf.RoleHTTP // what its sockets carry is encrypted
		}
		probes := []Probe{zmqRecvd, zmqRecv}
		if p.ZMQ == nil {
			// A front end with a ZeroMQ of its own: only HTTP is seen there.
			probes, role = nil, role&^bpf.RoleReceipt
		}
		return probes, role
	case target.RoleOffline:
		return []Probe{zmqRecvd, zmqRecv}, bpf.RoleReceipt
	}
	return nil, 0
}

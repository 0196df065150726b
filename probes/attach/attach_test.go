package attach

import (
	"slices"
	"testing"

	"inferspan/bpf"
	"inferspan/probes/target"
)

func TestUretprobeKills(t *testing.T) {
	for _, tt := range []struct {
		machine, release string
		want             bool
	}{
		{"x86_64", "6.10.14", false},
		{"x86_64", "6.11.0-rc1", true},
		{"x86_64", "6.12.8+deb13-amd64", true},
		{"x86_64", "6.13.12", true},
		{"x86_64", "6.14.0", false},
		{"x86_64", "5.12.0", false},
		{"x86_64", "unreadable", true},
		{"aarch64", "6.12.0", false},
	} {
		if got := kernelUretprobeKills(tt.machine, tt.release); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.machine, tt.release, got, tt.want)
		}
	}
}

func TestPlan(t *testing.T) {
	lib := &target.Library{MapFile: "/lib"}
	for _, tt := range []struct {
		kind, name string
		p          target.Process
		probes     int
		role       bpf.Role
	}{
		{"vllm", "core", target.Process{Role: target.RoleCore, ZMQ: lib}, 3, bpf.RoleCore},
		{"vllm", "api server", target.Process{Role: target.RoleAPIServer, ZMQ: lib}, 2, bpf.RoleReceipt | bpf.RoleHTTP},
		{"vllm", "api server with TLS", target.Process{Role: target.RoleAPIServer, ZMQ: lib, TLS: true}, 2, bpf.RoleReceipt},
		{"vllm", "api server without libzmq", target.Process{Role: target.RoleAPIServer}, 0, bpf.RoleHTTP},
		{"vllm", "offline", target.Process{Role: target.RoleOffline, ZMQ: lib}, 2, bpf.RoleReceipt},
		{"vllm", "worker", target.Process{Role: target.RoleWorker, ZMQ: lib}, 0, 0},
		{"vllm", "launcher", target.Process{Role: target.RoleLauncher, ZMQ: lib}, 0, 0},
		{"sglang", "scheduler", target.Process{Role: target.RoleCore, ZMQ: lib}, 1, bpf.RoleSend},
		{"sglang", "front end", target.Process{Role: target.RoleAPIServer, ZMQ: lib}, 1, bpf.RoleSend | bpf.RoleHTTP},
		{"sglang", "front end with TLS", target.Process{Role: target.RoleAPIServer, ZMQ: lib, TLS: true}, 1, bpf.RoleSend},
		{"sglang", "front end without libzmq", target.Process{Role: target.RoleAPIServer}, 0, bpf.RoleHTTP},
		{"sglang", "detokenizer", target.Process{Role: target.RoleDetokenizer, ZMQ: lib}, 0, 0},
		{"sglang", "DP controller", target.Process{Role: target.RoleController, ZMQ: lib}, 1, bpf.RoleSend},
		{"sglang", "offline", target.Process{Role: target.RoleOffline, ZMQ: lib}, 1, bpf.RoleSend},
		{"sglang", "router", target.Process{Role: target.RoleRouter, ZMQ: lib}, 0, 0},
		{"sglang", "gateway", target.Process{Role: target.RoleGateway}, 0, 0},
		{"another", "core", target.Process{Role: target.RoleCore, ZMQ: lib}, 0, 0},
	} {
		probes, role := Plan(tt.kind, &tt.p)
		if len(probes) != tt.probes || role != tt.role {
			t.Errorf("%s %s: %d probes and role %d, want %d and %d", tt.kind, tt.name, len(probes), role, tt.probes, tt.role)
		}
		// A call noted at its entry must meet a probe at its return.
		returns := map[string]bool{}
		for _, p := range probes {
			if tt.kind == "sglang" && p.Symbol != "zmq_msg_send" {
				t.Errorf("%s: %s, where sockets are polled", tt.name, p)
			}
			if p.Where == Return {
				returns[p.Symbol] = true
			} else if p.Program == bpf.ProgWireRecvEnter && !returns[p.Symbol] {
				t.Errorf("%s: %s is attached before its return", tt.name, p)
			}
		}
	}
}

func TestPorts(t *testing.T) {
	many := make([]int, 20)
	core := target.Process{Role: target.RoleCore, Ports: many}
	if got := ports(&core, bpf.RoleCore); got != nil {
		t.Errorf("engine core: %v, want none", got)
	}
	api := target.Process{Role: target.RoleAPIServer, Ports: []int{8000, 65535}}
	if got := ports(&api, bpf.RoleAPI); !slices.Equal(got, []uint16{8000, 65535}) {
		t.Errorf("API server: %v", got)
	}
}

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
		name   string
		p      target.Process
		probes int
		role   bpf.Role
	}{
		{"core", target.Process{Role: target.RoleCore, ZMQ: lib}, 3, bpf.RoleCore},
		{"api server", target.Process{Role: target.RoleAPIServer, ZMQ: lib}, 2, bpf.RoleReceipt | bpf.RoleHTTP},
		{"api server with TLS", target.Process{Role: target.RoleAPIServer, ZMQ: lib, TLS: true}, 2, bpf.RoleReceipt},
		{"api server without libzmq", target.Process{Role: target.RoleAPIServer}, 0, bpf.RoleHTTP},
		{"offline", target.Process{Role: target.RoleOffline, ZMQ: lib}, 2, bpf.RoleReceipt},
		{"worker", target.Process{Role: target.RoleWorker, ZMQ: lib}, 0, 0},
		{"launcher", target.Process{Role: target.RoleLauncher, ZMQ: lib}, 0, 0},
	} {
		probes, role := Plan(&tt.p)
		if len(probes) != tt.probes || role != tt.role {
			t.Errorf("%s: %d probes and role %d, want %d and %d", tt.name, len(probes), role, tt.probes, tt.role)
		}
		// A call noted at its entry must meet a probe at its return.
		returns := map[string]bool{}
		for _, p := range probes {
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

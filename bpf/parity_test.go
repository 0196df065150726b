package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

func objects(t *testing.T) (amd64, arm64 *ebpf.CollectionSpec) {
	t.Helper()
	amd64, err := ebpf.LoadCollectionSpec("tracer_x86_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	arm64, err = ebpf.LoadCollectionSpec("tracer_arm64_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	return amd64, arm64
}

// TestParity compares the objects of the two architectures.
func TestParity(t *testing.T) {
	amd64, arm64 := objects(t)
	if len(amd64.Programs) != len(arm64.Programs) {
		t.Errorf("amd64 has %d programs, arm64 %d", len(amd64.Programs), len(arm64.Programs))
	}
	for name, p := range amd64.Programs {
		q := arm64.Programs[name]
		if q == nil {
			t.Errorf("arm64 has no program %s", name)
			continue
		}
		if p.Type != q.Type || p.SectionName != q.SectionName || p.AttachTo != q.AttachTo || p.License != q.License {
			t.Errorf("program %s differs: %s %s, %s %s", name, p.Type, p.SectionName, q.Type, q.SectionName)
		}
	}
	if len(amd64.Maps) != len(arm64.Maps) {
		t.Errorf("amd64 has %d maps, arm64 %d", len(amd64.Maps), len(arm64.Maps))
	}
	for name, m := range amd64.Maps {
		n := arm64.Maps[name]
		if n == nil {
			t.Errorf("arm64 has no map %s", name)
			continue
		}
		if m.Type != n.Type || m.KeySize != n.KeySize || m.ValueSize != n.ValueSize || m.MaxEntries != n.MaxEntries || m.Flags != n.Flags {
			t.Errorf("map %s differs: %v, %v", name, m, n)
		}
	}
	for name := range amd64.Variables {
		if arm64.Variables[name] == nil {
			t.Errorf("arm64 has no variable %s", name)
		}
	}
}

// TestRegisters checks that each object reads its own architecture's registers:
// the arguments of zmq_msg_send, and the result of zmq_msg_recv.
func TestRegisters(t *testing.T) {
	amd64, arm64 := objects(t)
	for _, tt := range []struct {
		arch    string
		spec    *ebpf.CollectionSpec
		program string
		want    []int16 // offsets into the register frame
	}{
		{"amd64", amd64, "wire_send", []int16{112, 104, 96}}, // di, si, dx
		{"amd64", amd64, "wire_recv_enter", []int16{112, 104}},
		{"amd64", amd64, "wire_recv_exit", []int16{80}},  // ax
		{"arm64", arm64, "wire_send", []int16{0, 8, 16}}, // x0, x1, x2
		{"arm64", arm64, "wire_recv_enter", []int16{0, 8}},
		{"arm64", arm64, "wire_recv_exit", []int16{0}},
		{"amd64", amd64, "py_hit", []int16{128}}, // ip
		{"arm64", arm64, "py_hit", []int16{256}}, // pc
	} {
		got := contextReads(tt.spec.Programs[tt.program].Instructions)
		for _, off := range tt.want {
			if !slices.Contains(got, off) {
				t.Errorf("%s %s reads the context at %v, want %v among them", tt.arch, tt.program, got, tt.want)
				break
			}
		}
	}
}

// contextReads returns the offsets at which a program reads its context: through
// R1 up to the first call, and where it was saved by then, registers or stack.
func contextReads(insns asm.Instructions) []int16 {
	var offsets []int16
	holds := map[asm.Register]bool{asm.R1: true}
	slots := map[int16]bool{}
	for _, in := range insns {
		class := in.OpCode.Class()
		gets := false // the instruction copies the context to its destination
		switch {
		case class == asm.LdXClass && holds[in.Src]:
			offsets = append(offsets, in.Offset)
		case class == asm.LdXClass && in.Src == asm.RFP:
			gets = slots[in.Offset]
		case class == asm.StXClass && in.Dst == asm.RFP:
			slots[in.Offset] = holds[in.Src]
		case class.IsALU() && in.OpCode.ALUOp() == asm.Mov && in.OpCode.Source() == asm.RegSource:
			gets = holds[in.Src]
		case class.IsJump() && in.OpCode.JumpOp() == asm.Call:
			delete(holds, asm.R1)
		}
		if class.IsLoad() || class.IsALU() {
			holds[in.Dst] = gets
		}
	}
	return offsets
}

// TestObjectsHaveNoHostPaths keeps the committed objects free of the paths of the
// machine they were built on.
func TestObjectsHaveNoHostPaths(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("tracer_*.o")
	if err != nil || len(files) != 2 {
		t.Fatalf("objects: %v, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), dir) {
			t.Errorf("%s has the path %s in it", f, dir)
		}
	}
}

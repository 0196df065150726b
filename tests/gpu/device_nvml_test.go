//go:build cgo

package gpu

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"inferspan/gpu/nvml"
)

// TestDeviceNVML is for a machine with a GPU (on_device.sh): it prints what NVML says of it,
// before and while a program uses it, and fails where there is no GPU, where one does not
// tell what all of them do, or where the program is not seen.
func TestDeviceNVML(t *testing.T) {
	if os.Getenv("INFERSPAN_DEVICE_PYTHON") == "" {
		t.Skip("INFERSPAN_DEVICE_PYTHON is not set: this test needs a GPU, see on_device.sh")
	}
	lib, err := nvml.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	version, err := lib.Driver()
	t.Logf("driver %s, %v", version, err)
	r, err := nvml.NewReader(lib, func(uint32) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Problem(); err != nil {
		t.Logf("problem: %v", err)
	}
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	facts := r.Refresh()
	for _, f := range facts {
		t.Logf("device %s", text(f))
		if f.UUID == "" || f.Name == "" {
			t.Errorf("device %s has no UUID or no name", text(f))
		}
	}
	if len(facts) == 0 {
		t.Fatal("no devices")
	}
	pid, step := startDeviceProgram(t)
	seen := false
	for i := range 5 {
		step()
		time.Sleep(time.Second)
		samples, news := r.Sample(true)
		for _, f := range news {
			t.Logf("sample %d: device %s", i, text(f)) // what it does not tell, and why
		}
		if len(samples) == 0 {
			t.Fatalf("sample %d has no devices", i)
		}
		for _, s := range samples {
			t.Logf("sample %d: %s", i, text(s))
			if s.Lost || s.MemoryTotal == nil || *s.MemoryTotal == 0 {
				t.Errorf("sample %d: %s: lost, or without memory", i, s.UUID)
			}
			for _, p := range s.Processes {
				seen = seen || p.PID == uint32(pid)
			}
		}
	}
	// Numbers are the host's: in another PID namespace the program has another one there.
	if !seen {
		t.Errorf("no device has process %d, which uses one; are we in the host's PID namespace?", pid)
	}
}

package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCUDA(t *testing.T) {
	proc := t.TempDir()
	put := func(pid, maps string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "maps"), []byte(maps), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("7", "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /usr/lib/libcudart.so.13\n")
	if it := (Checker{Proc: proc}).cuda(); it.State != Missing {
		t.Errorf("without a driver: %+v", it)
	}
	put("8", "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /usr/lib/libcuda.so.580.65.06\n")
	if it := (Checker{Proc: proc}).cuda(); it.State != OK {
		t.Errorf("with a driver: %+v", it)
	}
}

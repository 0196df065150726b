package term

import (
	"os"
	"testing"
)

// A terminal that was made by a program and given no size has 0 columns.
func TestTerminalWithoutSize(t *testing.T) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	defer f.Close()
	if cols, ok := terminal(f); !ok || cols != 0 {
		t.Fatalf("a new terminal has %d columns, %v", cols, ok)
	}
	if o := OptionsFor(f); o.Width != 80 {
		t.Errorf("width %d, want 80", o.Width)
	}
}

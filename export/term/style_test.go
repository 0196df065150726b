package term

import (
	"testing"

	"inferspan/tests/pty"
)

// A terminal that was made by a program and given no size has 0 columns.
func TestTerminalWithoutSize(t *testing.T) {
	_, f := pty.Open(t, 0)
	if cols, ok := terminal(f); !ok || cols != 0 {
		t.Fatalf("a new terminal has %d columns, %v", cols, ok)
	}
	if o := OptionsFor(f); o.Width != 80 {
		t.Errorf("width %d, want 80", o.Width)
	}
}

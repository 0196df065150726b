package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// cuda looks for processes that have the CUDA driver loaded: its functions are probed
// there, wherever the file lies.
func (c Checker) cuda() Item {
	it := Item{Name: CUDA, State: OK, NeededFor: "forward passes of engine cores (--cuda)"}
	maps, _ := filepath.Glob(filepath.Join(c.Proc, "[0-9]*/maps"))
	n := 0
	for _, m := range maps {
		if b, err := os.ReadFile(m); err == nil && bytes.Contains(b, []byte("/libcuda.so")) {
			n++
		}
	}
	if n > 0 {
		it.Detail = fmt.Sprintf("mapped by %d processes: waits for the GPU and launches of graphs are seen", n)
		return it
	}
	it.State, it.Detail = Missing, "no process maps libcuda.so: no launch is seen"
	it.Fix = "normal without an engine on an NVIDIA GPU"
	return it
}

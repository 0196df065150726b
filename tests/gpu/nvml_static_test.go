//go:build !cgo

package gpu

import (
	"errors"
	"testing"

	"inferspan/gpu/nvml"
)

// A build without cgo says why it reads no GPU. The tests of one with it are in nvml_test.go.
func TestNVMLStatic(t *testing.T) {
	if _, err := nvml.Open(); !errors.Is(err, nvml.ErrNoCgo) {
		t.Errorf("%v, want %v", err, nvml.ErrNoCgo)
	}
}

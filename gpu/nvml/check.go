package nvml

import (
	"errors"
	"fmt"
	"os"
)

// Sign reports whether this host looks like one with an NVIDIA GPU: the driver is loaded, or
// its device is passed into this container.
func Sign() bool {
	for _, p := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl"} {
		if _, err := os.Stat(p); err == nil {
			return true
		}
	}
	return false
}

// State is what can be read here.
type State struct {
	GPUs   int
	Driver string
	// Err is why nothing can be read, or, with GPUs, why some cannot; nil if all can. Fix
	// says what helps, "" if nothing is known.
	Err error
	Fix string
}

// Check opens the library and counts the GPUs.
func Check(open func() (Library, error)) State {
	l, err := open()
	if err != nil {
		return State{Err: err, Fix: fix(err)}
	}
	defer l.Close()
	var s State
	s.Driver, _ = l.Driver()
	devices, err := l.Devices()
	s.GPUs = len(devices)
	if s.Err = err; err == nil && s.GPUs == 0 {
		s.Err = errors.New("NVML knows no GPU")
	}
	for _, d := range devices {
		if _, err := d.UUID(); err != nil && s.Err == nil {
			s.Err = fmt.Errorf("reading a GPU: %w", err)
		}
	}
	s.Fix = fix(s.Err)
	return s
}

func fix(err error) string {
	switch {
	case errors.Is(err, ErrNoCgo):
		return `build with "make build-nvml", or use the container image`
	case errors.Is(err, ErrNoLibrary):
		return "normal without an NVIDIA GPU; else install the driver's libraries, or run the container with the NVIDIA runtime"
	case errors.Is(err, ErrNoDriver):
		return "load the driver (modprobe nvidia), or pass its devices into the container"
	case errors.Is(err, ErrPermission):
		return "run as root, or as a user that may open /dev/nvidiactl"
	}
	return ""
}

package main

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/gpu/nvml"
	"inferspan/gpu/nvml/nvmltest"
	"inferspan/probes/host"
)

func TestCheckNVML(t *testing.T) {
	fails := func(err error) func() (nvml.Library, error) {
		return func() (nvml.Library, error) { return nil, fmt.Errorf("loading NVML: %w", err) }
	}
	has := func(gpus ...*nvmltest.Device) func() (nvml.Library, error) {
		return func() (nvml.Library, error) { return nvmltest.New(gpus...), nil }
	}
	for _, c := range []struct {
		name        string
		found       host.State // whether the file is there
		open        func() (nvml.Library, error)
		want        host.State
		detail, fix string
	}{
		{"two GPUs", host.OK, has(&nvmltest.Device{ID: "a"}, &nvmltest.Device{ID: "b"}), host.OK, "driver 580.95.05, GPUs: 2", ""},
		{"found by the loader only", host.Missing, has(&nvmltest.Device{ID: "a"}), host.OK, "driver 580.95.05, GPUs: 1", ""},
		{"one is lost", host.OK, has(&nvmltest.Device{ID: "a"}, &nvmltest.Device{ID: "b", Lost: true}), host.Degraded, "GPUs: 2; reading a GPU: the GPU is lost", ""},
		{"none", host.OK, has(), host.Missing, "NVML knows no GPU", ""},
		{"no cgo, library there", host.OK, fails(nvml.ErrNoCgo), host.Missing, "built without cgo", "make build-nvml"},
		{"no cgo, no library", host.Missing, fails(nvml.ErrNoCgo), host.Missing, "built without cgo", "looked for"},
		{"no library", host.Missing, fails(nvml.ErrNoLibrary), host.Missing, "libnvidia-ml.so.1 cannot be loaded", "normal without"},
		{"no driver", host.OK, fails(nvml.ErrNoDriver), host.Missing, "driver is not loaded", "modprobe"},
		{"no permission", host.OK, fails(nvml.ErrPermission), host.Missing, "no permission", "root"},
	} {
		r := host.Report{Items: []host.Item{{Name: host.NVML, State: c.found, Detail: "looked for", Fix: "looked for"}}}
		checkNVML(&r, c.open)
		it := r.Items[0]
		if it.State != c.want || !strings.Contains(it.Detail, c.detail) || !strings.Contains(it.Fix, c.fix) || c.fix == "" && it.Fix != "" {
			t.Errorf("%s: %+v", c.name, it)
		}
	}
}

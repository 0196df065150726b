// Package rig runs programs on the fake GPU (README.md), which build.sh has put into the
// cache folder.
package rig

import (
	"embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"inferspan/tests/cache"
)

//go:embed apps/*.c apps/*.h
var apps embed.FS

// Dir returns where the fake GPU was built, and skips the test, with the reason, where it is
// not.
func Dir(t testing.TB) string {
	t.Helper()
	if os.Getenv("INFERSPAN_GPU") != "1" {
		t.Skip("INFERSPAN_GPU=1 is not set: this test needs the fake GPU, which is built with NVIDIA's headers")
	}
	root, err := cache.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "cuda-rig")
	if _, err := os.Stat(filepath.Join(dir, ".complete")); err != nil {
		t.Skipf("%v: \"make rig\" builds the fake GPU", err)
	}
	return dir
}

// Command builds a program of apps and makes the command that runs it on the fake GPU.
func Command(t testing.TB, name string, env ...string) *exec.Cmd {
	t.Helper()
	rig, dir := Dir(t), t.TempDir()
	file, app, lib := filepath.Join(dir, name+".c"), filepath.Join(dir, name), filepath.Join(rig, "lib")
	for _, source := range []string{name + ".c", "app.h"} {
		text, err := apps.ReadFile("apps/" + source)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, source), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-I", filepath.Join(rig, "headers/nvidia/cu13/include"),
		"-o", app, file, filepath.Join(lib, "libcudart.so.13"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s.c: %v\n%s", name, err, out)
	}
	run := exec.Command(app)
	run.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+lib), env...)
	return run
}

// Traced is Command for a program that probes are attached to, which takes root.
func Traced(t testing.TB, name string, env ...string) *exec.Cmd {
	t.Helper()
	run := Command(t, name, env...)
	if os.Getuid() != 0 {
		t.Skip("not root: probes cannot be attached")
	}
	return run
}

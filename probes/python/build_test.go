package python

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inferspan/tests/pythons"
)

const where = `
import os, sys, sysconfig
name = sysconfig.get_config_var("INSTSONAME") or ""
libs = [os.path.join(d, name) for d in (sys.prefix + "/lib", sysconfig.get_config_var("LIBDIR") or "")]
print(os.path.realpath(sys.executable), sys.prefix, "_asyncio" in sys.builtin_module_names, *[p for p in libs if os.path.isfile(p)])
`

// TestLiveBuilds reads interpreters that say less about themselves than the usual
// ones: without symbol table, and without a symbol for what the reader looks for.
func TestLiveBuilds(t *testing.T) {
	have := pythons.Find()
	for _, v := range pythons.Supported {
		if len(have[v]) == 0 {
			t.Run(v, func(t *testing.T) { t.Skipf("no Python %s on this machine", v) })
		}
		for _, python := range have[v] {
			b, err := exec.Command(python, "-c", where).Output()
			if err != nil {
				t.Fatal(err)
			}
			w := strings.Fields(string(b))
			exe, prefix, lib := w[0], w[1], ""
			f, err := elf.Open(exe)
			if err != nil {
				t.Fatal(err)
			}
			needs, err := f.ImportedLibraries()
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(needs, func(s string) bool { return strings.Contains(s, "libpython") }) {
				lib = w[3]
			}
			t.Run(v+" stripped", func(t *testing.T) {
				testBuild(t, exe, prefix, lib, func(data []byte) []byte { return data })
			})
			if w[2] != "True" || lib != "" || v == "3.10" {
				continue // modules in files of their own, or a library, need the symbol
			}
			t.Run(v+" without _PyRuntime", func(t *testing.T) {
				testBuild(t, exe, prefix, lib, func(data []byte) []byte { return hide(data, "_PyRuntime") })
			})
			t.Run(v+" without _PyRuntime and Py_Version", func(t *testing.T) {
				testBuild(t, exe, prefix, lib, func(data []byte) []byte { return hide(hide(data, "_PyRuntime"), "Py_Version") })
			})
		}
	}
}

// hide gives a symbol another name.
func hide(data []byte, symbol string) []byte {
	other := append([]byte(symbol), 0)
	other[0] = 'X'
	return bytes.ReplaceAll(data, []byte("\x00"+symbol+"\x00"), append([]byte{0}, other...))
}

// testBuild strips a copy of an interpreter and changes it, runs it and reads the zoo.
func testBuild(t *testing.T, exe, prefix, lib string, change func([]byte) []byte) {
	t.Helper()
	dir := t.TempDir()
	for from, to := range map[string]string{
		exe: filepath.Join(dir, "bin", "python"), // nothing but the interpreter tells the version
		lib: filepath.Join(dir, "lib", filepath.Base(lib)),
	} {
		if from == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := elf.NewFile(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		} else if f.Section(".symtab") != nil {
			if out, err := exec.Command("strip", "--strip-all", "-o", to, from).CombinedOutput(); err != nil {
				t.Fatalf("strip: %v: %s", err, out)
			}
			if data, err = os.ReadFile(to); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(to, change(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(dir, "lib"))
	t.Setenv("PYTHONHOME", prefix)
	in := open(t, start(t, filepath.Join(dir, "bin", "python")).PID())
	t.Logf("%+v", in.Info)
	if !in.Stripped || !strings.HasPrefix(in.Info.Path, dir) {
		t.Errorf("the interpreter is %+v, want a stripped one in %s", in.Info, dir)
	}
	checkZoo(t, in)
}

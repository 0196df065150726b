// Package pythons finds CPython interpreters to test with.
package pythons

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"inferspan/tests/cache"
)

// Supported are the minor versions that can be read.
var Supported = []string{"3.10", "3.11", "3.12", "3.13", "3.14"}

// Find returns the interpreters on this machine by minor version, each once: those of
// the list INFERSPAN_PYTHONS, else what install.sh put into the cache folder, what is
// in the path, in /usr/bin (a static one on Debian) and in pyenv.
func Find() map[string][]string {
	var paths []string
	if list := os.Getenv("INFERSPAN_PYTHONS"); list != "" {
		paths = filepath.SplitList(list)
	} else {
		for _, v := range append([]string{"3.9"}, Supported...) {
			if p, err := exec.LookPath("python" + v); err == nil {
				paths = append(paths, p)
			}
		}
		paths = append(paths, "/usr/bin/python3")
		if b, err := exec.Command("pyenv", "root").Output(); err == nil {
			paths = append(paths, glob(strings.TrimSpace(string(b)), "versions", "3.*", "bin", "python3")...)
		}
		if dir, err := cache.Dir(); err == nil { // as install.sh
			paths = append(paths, glob(dir, "pythons", "3.*", "bin", "python3.[1-9][0-9]")...)
		}
	}
	out := make(map[string][]string)
	seen := make(map[string]bool)
	for _, p := range paths {
		b, err := exec.Command(p, "-c", "import os, sys; print('%d.%d' % sys.version_info[:2], os.path.realpath(sys.executable))").Output()
		v, real, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		if err == nil && !seen[real] {
			seen[real] = true
			out[v] = append(out[v], p)
		}
	}
	return out
}

// Each runs f with the interpreters of each supported version, as a subtest; one of a
// version that is not on this machine is skipped.
func Each(t *testing.T, f func(t *testing.T, paths []string)) {
	have := Find()
	for _, v := range Supported {
		t.Run(v, func(t *testing.T) {
			if len(have[v]) == 0 {
				t.Skipf("no Python %s on this machine", v)
			}
			f(t, have[v])
		})
	}
}

func glob(parts ...string) []string {
	found, _ := filepath.Glob(filepath.Join(parts...))
	return found
}

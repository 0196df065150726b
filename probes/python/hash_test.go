package python

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/tests/child"
)

// TestStrHash compares hashes with those of the interpreter, for strings of each
// length around the blocks of the hash function, with and without a random key.
func TestStrHash(t *testing.T) {
	var texts []string
	for n := range 40 {
		texts = append(texts, strings.Repeat("ab", n)[:n])
	}
	texts = append(texts, "num_scheduled_tokens", strings.Repeat("x", 1000))
	const script = `
import sys
texts = sys.argv[1:]
print(*[hash(t) & 2**64 - 1 for t in texts], flush=True)
sys.stdin.read()
`
	eachPython(t, func(t *testing.T, python string) {
		for _, seed := range []string{"0", "1", "random"} {
			cmd := exec.Command(python, append([]string{"-c", script}, texts...)...)
			cmd.Env = append(os.Environ(), "PYTHONHASHSEED="+seed)
			p := child.Start(t, cmd)
			line := p.Line()
			interp := open(t, p.PID())
			for i, s := range strings.Fields(line) {
				want, err := strconv.ParseUint(s, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := interp.StrHash(texts[i]); err != nil || got != want {
					t.Errorf("%s, seed %s: hash of %q is %#x, %v, want %#x", python, seed, texts[i], got, err, want)
				}
			}
			// Without the symbol.
			want, err := interp.StrHash("name")
			if err != nil || interp.img.secret == 0 {
				t.Fatalf("%s: %v, secret at %#x", python, err, interp.img.secret)
			}
			interp.img.secret = 0
			interp.hash.Store(nil)
			began := time.Now()
			if got, err := interp.StrHash("name"); err != nil || got != want {
				t.Errorf("%s, seed %s: hash without the symbol is %#x, %v, want %#x", python, seed, got, err, want)
			}
			t.Logf("%s: found without the symbol in %v", python, time.Since(began))
			interp.img.data = nil
			interp.hash.Store(nil)
			if _, err := interp.StrHash("name"); !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: neither symbol nor variable: %v", python, err)
			}
			if _, err := interp.StrHash("caf\u00e9"); !errors.Is(err, ErrType) {
				t.Errorf("hash of a str that is not ASCII: %v", err)
			}
			if _, err := interp.CaptureLayout(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCaptureLayoutRefused checks that an interpreter whose lock is not where it is
// expected is refused with the reason.
func TestCaptureLayoutRefused(t *testing.T) {
	eachPython(t, func(t *testing.T, python string) {
		in := open(t, start(t, python).PID())
		if _, err := in.CaptureLayout(); err != nil {
			t.Fatalf("%s: %v", python, err)
		}
		in.layout.StrState++
		if _, err := in.CaptureLayout(); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: a str with its state elsewhere: %v", python, err)
		}
	})
}

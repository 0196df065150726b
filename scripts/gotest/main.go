// Command gotest runs "go test" and leaves out nothing that matters: every skip
// with its reason, the whole output of what failed, and the closing line of every
// package as the Go runner prints it. With -v it prints all output.
//
// usage: gotest [-v] ARGUMENTS OF GO TEST
//
// It ends with the exit code of "go test".
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

func main() {
	args, verbose := os.Args[1:], false
	if len(args) > 0 && args[0] == "-v" {
		args, verbose = args[1:], true
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gotest: running go test: %v\n", err)
		os.Exit(1)
	}
	skips := show(out, os.Stdout, verbose)
	err = cmd.Wait()
	if skips > 0 {
		fmt.Printf("%d tests skipped, each with its reason above\n", skips)
	}
	if err == nil {
		return
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintf(os.Stderr, "gotest: running go test: %v\n", err)
	os.Exit(1)
}

// show prints the events of in and returns the number of skipped tests.
func show(in io.Reader, out io.Writer, verbose bool) (skips int) {
	kept := map[string][]string{} // output of each test, and of each package itself
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(out, line) // not an event, such as a message of the linker
			} else if key := e.Package + "\x00" + e.Test; e.Action == "output" || e.Action == "build-output" {
				switch {
				case verbose || e.Action == "build-output", e.Test == "" && closing(e.Output):
					fmt.Fprint(out, e.Output)
				default:
					kept[key] = append(kept[key], e.Output)
				}
			} else {
				if e.Action == "skip" && e.Test != "" {
					skips++
				}
				if !verbose && (e.Action == "fail" || e.Action == "skip" && e.Test != "") {
					for _, o := range kept[key] {
						if !strings.HasPrefix(o, "=== ") {
							fmt.Fprint(out, o)
						}
					}
				}
				if e.Action == "fail" || e.Action == "skip" || e.Action == "pass" {
					delete(kept, key)
				}
			}
		}
		if err != nil {
			return skips
		}
	}
}

// closing recognises the line with which the runner ends a package.
func closing(line string) bool {
	for _, p := range []string{"ok  \t", "FAIL\t", "?   \t"} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

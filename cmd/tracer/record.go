package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"inferspan/agent"
	"inferspan/bpf/event"
	"inferspan/export/term"
	"inferspan/probes/host"
	"inferspan/probes/target"
	"inferspan/recording"
)

func newRecord() *cobra.Command {
	var (
		pid      int
		cost     budget
		out      string
		duration time.Duration
		redact   bool
		content  bool
		note     string
	)
	c := &cobra.Command{
		Use:   "record --pid PID -o FILE",
		Short: "Record what the kernel side sees, for replay",
		Long: `Record writes the kernel records of an engine, as they came, with the facts
needed to decode them. "inferspan replay" turns the file into spans, metrics or a
summary, also on another machine.

A recording holds prompts and, with --content, completions. With --redact texts
and token ids are blanked, so that it may be shared; times, sizes and counts stay.
Credentials in headers are never recorded.`,
		Example: `  inferspan record --pid 4242 -o run.isr --duration 1m
  inferspan record --pid 4242 -o run.isr --redact        until Ctrl-C`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if out == "" {
				return withCode(exitUsage, errors.New("--output is missing: where should the recording go?"))
			}
			if duration < 0 {
				return withCode(exitUsage, fmt.Errorf("--duration %s: want 0 or more", duration))
			}
			lo, err := cost.options(content)
			if err != nil {
				return err
			}
			var live *agent.Live
			attachLines(cmd.ErrOrStderr(), &lo, &live, nil)
			if live, err = openLive(cmd.Context(), pid, lo); err != nil {
				return err
			}
			defer live.Close()
			f, err := newFile(out)
			if err != nil {
				return err
			}
			defer func() { err = f.end(err) }()
			w, err := recording.NewWriter(f, recording.Meta{
				Tool: version, Started: time.Now().UTC(), Kernel: host.Release(), Arch: runtime.GOARCH,
				Redacted: redact, Content: content, Note: note,
			})
			if err != nil {
				return withCode(exitExport, err)
			}
			p := &progress{w: cmd.ErrOrStderr(), line: func() string {
				n, recs := w.Size()
				return and(fmt.Sprintf("recording process %d: %d records, %s", pid, recs, bytesText(n)), term.Losses(live.Losses()))
			}}
			ctx, cancel := runContext(cmd.Context(), duration)
			defer cancel()
			err = live.Run(ctx, agent.NewRecorder(w, redact), p)
			p.done()
			if cerr := w.Close(); cerr != nil {
				return withCode(exitExport, fmt.Errorf("recording to %s: %w", out, cerr))
			}
			n, recs := w.Size()
			fmt.Fprintln(cmd.ErrOrStderr(), and(fmt.Sprintf("%s: %d records, %s", out, recs, bytesText(n)), term.Losses(live.Losses())))
			return runEnd(err)
		},
	}
	f := c.Flags()
	pidFlag(c, &pid)
	cost.flags(c)
	f.StringVarP(&out, "output", "o", "", "file to write")
	f.DurationVarP(&duration, "duration", "d", 0, "stop after this long (0: until interrupted)")
	f.BoolVar(&redact, "redact", false, "blank texts and token ids")
	f.BoolVar(&content, "content", false, "record whole responses, not only their heads and ends")
	f.StringVar(&note, "note", "", "a note to store in the file")
	return c
}

// file is a file that appears under its name only when it is complete enough to
// be of use.
type file struct {
	*os.File
	name string // "": written in place
}

// newFile makes a file beside name that end moves there. What is no regular
// file, such as a pipe, is written to as it is.
func newFile(name string) (*file, error) {
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return nil, withCode(exitExport, fmt.Errorf("opening %s: %w", name, err))
		}
		return &file{File: f}, nil
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err // the path in it is that of the temporary file
		}
		return nil, withCode(exitExport, fmt.Errorf("creating %s: %w", name, err))
	}
	return &file{f, name}, nil
}

// end closes the file. If writing failed it is removed, else it gets its name.
func (f *file) end(err error) error {
	cerr := f.Close()
	if f.name == "" {
		return errors.Join(err, withCode(exitExport, cerr))
	}
	if code := exitCode(err); err != nil && code == exitExport {
		os.Remove(f.File.Name())
		return err
	}
	if cerr == nil {
		cerr = os.Rename(f.File.Name(), f.name)
	}
	if cerr != nil {
		os.Remove(f.File.Name())
		return errors.Join(err, withCode(exitExport, fmt.Errorf("finishing %s: %w", f.name, cerr)))
	}
	return err
}

// runContext is ctx, ended after d unless d is 0.
func runContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// progress is a consumer that shows a line about once a second while the run
// goes on: rewritten in place on a terminal, one every ten seconds elsewhere.
type progress struct {
	w     interface{ Write([]byte) (int, error) }
	line  func() string
	next  time.Time
	shown bool
}

func (p *progress) Engine(*target.Engine) error { return nil }

func (p *progress) Record(r *event.Record) error {
	// A clock record comes at least once a second.
	if r.Kind != event.KindClock || p.w == nil {
		return nil
	}
	now := time.Now()
	if now.Before(p.next) {
		return nil
	}
	if isTerminal(p.w) {
		p.next = now.Add(900 * time.Millisecond)
		fmt.Fprintf(p.w, "\r\x1b[K%s", p.line())
		p.shown = true
		return nil
	}
	if !p.next.IsZero() {
		fmt.Fprintln(p.w, p.line())
	}
	p.next = now.Add(10 * time.Second)
	return nil
}

// done clears the line.
func (p *progress) done() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
Only a redacted one can be read by other users of this host.
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
			if err := checkPID(pid); err != nil {
				return err
			}
			lo, err := cost.options(content)
			if err != nil {
				return err
			}
			var live *agent.Live
			attachLines(cmd.ErrOrStderr(), &lo, &live, nil)
			mode := os.FileMode(0o600) // prompts are in it
			if redact {
				mode = 0o644
			}
			f, err := newFile(out, mode)
			if err != nil {
				return err
			}
			if live, err = openLive(cmd.Context(), pid, lo); err != nil {
				f.discard()
				return err
			}
			defer live.Close()
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

// newFile makes a file beside name that end moves there, with the mode less the
// umask. What is no regular file, such as a pipe, is written to as it is.
func newFile(name string, mode os.FileMode) (*file, error) {
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return nil, withCode(exitExport, fmt.Errorf("opening %s: %w", name, err))
		}
		return &file{File: f}, nil
	}
	var (
		f   *os.File
		err error = os.ErrExist
	)
	// Not os.CreateTemp, whose files are private whatever the umask.
	for try := 0; try < 100 && errors.Is(err, os.ErrExist); try++ {
		tmp := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%d", filepath.Base(name), rand.Uint32()))
		f, err = os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	}
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err // the path in it is that of the temporary file
		}
		return nil, withCode(exitExport, fmt.Errorf("creating %s: %w", name, err))
	}
	return &file{f, name}, nil
}

// discard closes the file and leaves nothing of it.
func (f *file) discard() {
	f.Close()
	if f.name != "" {
		os.Remove(f.File.Name())
	}
}

// end closes the file. If writing failed or was interrupted it is removed, else it
// gets its name.
func (f *file) end(err error) error {
	cerr := f.Close()
	if f.name == "" {
		return errors.Join(err, withCode(exitExport, cerr))
	}
	if err != nil && (exitCode(err) == exitExport || errors.Is(err, errInterrupted)) {
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
		// A line that the terminal breaks cannot be rewritten.
		fmt.Fprintf(p.w, "\r\x1b[K%s", term.Cut(p.line(), term.OptionsFor(p.w).Width-1))
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

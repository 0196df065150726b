package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
	"inferspan/export"
)

// chunk is how much is gathered before a write. Writes end at line ends.
const chunk = 64 << 10

// Sink writes trees as JSON lines. It implements export.Sink; Metrics does nothing.
type Sink struct {
	w     io.Writer
	name  string   // in errors
	file  *os.File // w, if it can be cut back; else nil
	owned *os.File // closed by Close

	size   int64 // of file: what was written without an error
	keep   int64 // of file: where a failed write cuts it back to
	batch  bool  // inside Export: keep stays at its start
	enc    encoder
	buf    []byte
	err    error // of the first failed write: nothing is written after it
	closed bool
}

// New returns a sink that writes to w. It does not close w.
func New(w io.Writer) *Sink {
	s := &Sink{w: w, name: "spans"}
	if f, ok := w.(*os.File); ok {
		s.name = f.Name()
		s.setFile(f)
	}
	return s
}

// Create makes or empties the named file and returns a sink that writes to it.
// The file is readable by its owner only, as spans may hold request contents.
func Create(name string) (*Sink, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating span file: %w", err)
	}
	s := &Sink{w: f, owned: f, name: name}
	s.setFile(f)
	return s, nil
}

// SetDefaults has resources written with what d adds to them. Without any they are
// written as observed: no service is named after the engine. It is to be called before
// anything is written.
func (s *Sink) SetDefaults(d export.Defaults) { s.enc.defaults = d }

func (s *Sink) setFile(f *os.File) {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return
	}
	off, err := f.Seek(0, io.SeekCurrent)
	if err != nil || off != fi.Size() {
		return // opened for appending, or in the middle of something: not ours to cut
	}
	s.file, s.size, s.keep = f, off, off
}

// Write writes one tree. It returns the error of the first failed write, also
// to later calls: a file with a hole in it would look complete.
func (s *Sink) Write(t *trace.Tree) error {
	if s.err != nil {
		return s.err
	}
	s.buf = s.enc.tree(s.buf, t)
	if len(s.buf) >= chunk {
		return s.Flush()
	}
	return nil
}

// Flush writes out what is buffered. After a failed write to a regular file
// the torn last line is cut off again, so that all lines in it are whole.
func (s *Sink) Flush() error {
	if s.err != nil || len(s.buf) == 0 {
		return s.err
	}
	n, err := s.w.Write(s.buf)
	s.size += int64(n)
	s.buf = s.buf[:0]
	if err == nil {
		if !s.batch {
			s.keep = s.size
		}
		return nil
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err // the name is in the message already
	}
	s.err = fmt.Errorf("writing %s: %w", s.name, err)
	if s.file != nil && s.size > s.keep {
		if terr := s.file.Truncate(s.keep); terr != nil {
			s.err = fmt.Errorf("%w (and its last line is torn: %w)", s.err, terr)
		}
	}
	return s.err
}

// Export writes the trees and flushes. When that fails, a regular file is cut
// back to where it was before the call: it holds what was counted as exported.
func (s *Sink) Export(_ context.Context, trees []trace.Tree) error {
	if s.closed {
		return export.ErrClosed
	}
	if err := s.Flush(); err != nil {
		return err
	}
	s.batch = true
	defer func() { s.batch = false }()
	for i := range trees {
		if err := s.Write(&trees[i]); err != nil {
			return err
		}
	}
	if err := s.Flush(); err != nil {
		return err
	}
	s.keep = s.size
	return nil
}

// Metrics does nothing: the format has spans and log events only.
func (s *Sink) Metrics(context.Context, *metric.Snapshot) error { return nil }

// Close flushes, and closes the file if Create made it.
func (s *Sink) Close(context.Context) error {
	if s.closed {
		return s.err
	}
	s.closed = true
	_ = s.Flush() // kept in s.err
	if s.owned != nil {
		if s.file != nil && s.err == nil {
			// Some file systems tell of a full disk only now.
			if err := s.owned.Sync(); err != nil {
				s.err = fmt.Errorf("writing %s: %w", s.name, err)
			}
		}
		if err := s.owned.Close(); err != nil && s.err == nil {
			s.err = fmt.Errorf("closing %s: %w", s.name, err)
		}
	}
	return s.err
}

package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"inferspan/bpf/event"
)

// Reader reads records from the ring. The kernel wakes it once per
// Options.WakeBytes; it looks by itself at Options.FlushInterval. One goroutine
// may read; Close may be called from any.
type Reader struct {
	ring     *ringbuf.Reader
	flush    time.Duration
	deadline time.Time // of the caller, zero if none
	raw      ringbuf.Record

	close  sync.Once
	closed error
}

func newReader(ring *ebpf.Map, flush time.Duration) (*Reader, error) {
	r, err := ringbuf.NewReader(ring)
	if err != nil {
		return nil, fmt.Errorf("opening the ring: %w", err)
	}
	// Without a deadline the first wait would last until the first wake-up.
	r.SetDeadline(time.Now().Add(flush))
	return &Reader{ring: r, flush: flush}, nil
}

// SetDeadline makes Read return os.ErrDeadlineExceeded when the ring is empty at
// t. The zero time means to wait for ever.
func (r *Reader) SetDeadline(t time.Time) { r.deadline = t }

// Read waits for a record and decodes it into rec, whose Data stays valid until
// the next call. It returns os.ErrClosed after Close, os.ErrDeadlineExceeded (see
// SetDeadline), or an error that wraps event.ErrMalformed for a record that does
// not decode: reading can go on after that.
func (r *Reader) Read(rec *event.Record) error {
	for {
		err := r.ring.ReadInto(&r.raw)
		switch {
		case err == nil:
			return event.Decode(r.raw.RawSample, rec)
		case errors.Is(err, os.ErrClosed):
			return os.ErrClosed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("reading the ring: %w", err)
		}
		// The ring is empty. Records can follow without a wake-up: look again
		// after the flush interval at the latest.
		now := time.Now()
		next := now.Add(r.flush)
		if !r.deadline.IsZero() {
			if !now.Before(r.deadline) {
				return os.ErrDeadlineExceeded
			}
			if r.deadline.Before(next) {
				next = r.deadline
			}
		}
		r.ring.SetDeadline(next)
	}
}

// Unread returns how many bytes of records lie on the ring.
func (r *Reader) Unread() int { return r.ring.AvailableBytes() }

// Close ends a Read in progress. Calls after the first do nothing.
func (r *Reader) Close() error {
	r.close.Do(func() { r.closed = r.ring.Close() })
	return r.closed
}

package main

import (
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/tests/pty"
)

// The line of a run fits the terminal, where it is rewritten in place, and gives way to
// others.
func TestProgress(t *testing.T) {
	master, tty := pty.Open(t, 30)
	p := &progress{w: tty, line: func() string { return strings.Repeat("0123456789", 8) }}
	if err := p.Record(&event.Record{Header: event.Header{Kind: event.KindClock}}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1024)
	k, err := master.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	line, ok := strings.CutPrefix(string(b[:k]), "\r\x1b[K0123456789")
	if !ok || len(line)+10 >= 30 || len(line) < 10 {
		t.Errorf("shown: %q", b[:k])
	}
	say(tty, "attached")
	if k, err = master.Read(b); err != nil || string(b[:k]) != "\r\x1b[Kattached\r\n" {
		t.Errorf("said: %q, %v", b[:k], err)
	}
}

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inferspan/bpf/event"
)

// terminal makes one of 30 columns: what is written to the second is read from the first.
func terminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 30})
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { tty.Close() })
	return master, tty
}

// The line of a run fits the terminal, where it is rewritten in place, and gives way to
// others.
func TestProgress(t *testing.T) {
	master, tty := terminal(t)
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

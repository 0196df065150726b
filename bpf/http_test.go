package bpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"inferspan/bpf/event"
)

// pair is a connection of this process with itself: the descriptor of the server, that of the
// client, and the server's port.
type pair struct{ server, client, port int }

// connect makes connections to one port.
func connect(t *testing.T, n int) []pair {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	must(err)
	t.Cleanup(func() { unix.Close(l) })
	must(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(unix.Listen(l, n))
	at, err := unix.Getsockname(l)
	must(err)
	var out []pair
	for range n {
		p := pair{port: at.(*unix.SockaddrInet4).Port}
		p.client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		must(err)
		t.Cleanup(func() { unix.Close(p.client) })
		must(unix.Connect(p.client, at))
		p.server, _, err = unix.Accept(l)
		must(err)
		t.Cleanup(func() { unix.Close(p.server) })
		out = append(out, p)
	}
	return out
}

// exchange has a request and a response go by, and returns the records of it.
func (p pair) exchange(t *testing.T, o *Objects) []event.Record {
	t.Helper()
	b := make([]byte, 100)
	for _, s := range []struct {
		from, to int
		text     string
	}{{p.client, p.server, "GET / HTTP/1.1\r\n\r\n"}, {p.server, p.client, "HTTP/1.1 204 No Content\r\n\r\n"}} {
		if _, err := unix.Write(s.from, []byte(s.text)); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(s.to, b); err != nil || string(b[:n]) != s.text {
			t.Fatalf("read %q: %v", b[:n], err)
		}
	}
	var out []event.Record
	for o.Reader().SetDeadline(time.Now().Add(100 * time.Millisecond)); ; {
		var r event.Record
		err := o.Reader().Read(&r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == event.KindHTTP {
			r.Data = nil
			out = append(out, r)
		}
	}
}

// loaded has the programs loaded until the test ends.
func loaded(t *testing.T) *Objects {
	t.Helper()
	needRoot(t)
	o, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// check looks at the records of an exchange.
func check(t *testing.T, what string, rs []event.Record, want int, flags uint8) {
	t.Helper()
	if len(rs) != want {
		t.Errorf("%s: %d records, want %d", what, len(rs), want)
	}
	for _, r := range rs {
		if r.HTTP.Flags != flags {
			t.Errorf("%s: flags %d, want %d", what, r.HTTP.Flags, flags)
		}
	}
}

// TestEndedWatch: what the programs know of a connection is of no use when the watch is over,
// also where another process has the bit in common, and what a program noted that was under way.
func TestEndedWatch(t *testing.T) {
	o := loaded(t)
	c := connect(t, 1)[0]
	pid := os.Getpid()
	watch := func(pid int, role Role) {
		t.Helper()
		if err := o.SetTarget(pid, role, uint16(c.port)); err != nil {
			t.Fatal(err)
		}
	}
	watch(pid+64*len(tracerServerBits{}.Words), RoleHTTP)
	watch(pid, RoleHTTP)
	check(t, "watched", c.exchange(t, o), 2, 0)
	check(t, "again", c.exchange(t, o), 2, 0)
	watch(pid, RoleSend)
	check(t, "not for HTTP", c.exchange(t, o), 0, 0)
	watch(pid, RoleHTTP)
	check(t, "for HTTP again", c.exchange(t, o), 2, 0)

	key := uint64(pid)<<32 | uint64(c.server)
	var conn tracerConn
	if err := o.objs.Conns.Lookup(key, &conn); err != nil {
		t.Fatal(err)
	}
	if err := o.RemoveTarget(pid); err != nil {
		t.Fatal(err)
	}
	left := func() {
		t.Helper()
		if err := o.objs.Conns.Put(key, conn); err != nil {
			t.Fatal(err)
		}
	}
	left()
	check(t, "no longer", c.exchange(t, o), 0, 0)
	check(t, "nor then", c.exchange(t, o), 0, 0)
	watch(pid, RoleHTTP)
	left()
	check(t, "by a new watch", c.exchange(t, o), 2, event.HTTPMidstream)

	// Without its note, and then with what a program noted of the earlier watch.
	if err := o.forgetNotes(uint32(pid)); err != nil {
		t.Fatal(err)
	}
	check(t, "not noted", c.exchange(t, o), 2, event.HTTPMidstream)
	left()
	check(t, "of an earlier watch, read", c.exchange(t, o), 1, event.HTTPMidstream)
	check(t, "of an earlier watch", c.exchange(t, o), 2, event.HTTPMidstream)
}

// process starts one that does nothing until it is ended.
func process(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, func() {
		t.Helper()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExitedWatch: the end of a process ends its watch.
func TestExitedWatch(t *testing.T) {
	o := loaded(t)
	var n uint64
	if err := o.objs.WatchesExited.Get(&n); err != nil || n != 0 {
		t.Fatalf("%d watches, %v", n, err)
	}
	pid, end := process(t)
	if err := o.SetTarget(pid, RoleHTTP); err != nil {
		t.Fatal(err)
	}
	end()
	if err := o.objs.WatchesExited.Get(&n); err != nil || n != 1 {
		t.Errorf("%d watches ended with the process, want 1: %v", n, err)
	}
}

// TestSharedNote: connections whose descriptors have one place for what is noted.
func TestSharedNote(t *testing.T) {
	o := loaded(t)
	ps := connect(t, 2)
	far := ps[0].server + int(o.objs.FdNotes.MaxEntries())
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur <= uint64(far) {
		t.Skipf("no descriptor %d here: limit %d, %v", far, limit.Cur, err)
	}
	if err := unix.Dup2(ps[1].server, far); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(far)
	ps[1].server = far
	if err := o.SetTarget(os.Getpid(), RoleHTTP, uint16(ps[0].port)); err != nil {
		t.Fatal(err)
	}
	ids := map[uint64]int{}
	for n := range 4 {
		rs := ps[n%2].exchange(t, o)
		check(t, fmt.Sprint("exchange ", n), rs, 2, 0)
		for _, r := range rs {
			ids[r.HTTP.Conn] += n % 2
		}
	}
	if len(ids) != 2 {
		t.Errorf("%d connections, want 2", len(ids))
	}
}

// underWay returns how many calls are, and how many of them have no place.
func underWay(t *testing.T, o *Objects) (n [2]uint64) {
	t.Helper()
	if err := errors.Join(o.objs.CallsOpen.Get(&n[0]), o.objs.CallsApart.Get(&n[1])); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCallPlaces: calls of threads that share a place are traced, as is one after a call whose
// end was missed, and a thread that ends in a call leaves its place.
func TestCallPlaces(t *testing.T) {
	if ns, err := pidNamespace(); ns != 0 || err != nil {
		t.Skip("places are by global numbers of threads, which are not known here")
	}
	o := loaded(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := connect(t, 1)[0]
	if err := o.SetTarget(os.Getpid(), RoleHTTP, uint16(c.port)); err != nil {
		t.Fatal(err)
	}
	places := o.objs.CallPlaces.MaxEntries()
	set := func(thread int, taken uint64) {
		t.Helper()
		if err := o.objs.CallPlaces.Put(uint32(thread)%places, tracerCallPlace{Taken: taken}); err != nil {
			t.Fatal(err)
		}
	}
	takenBy := func(thread int) uint64 { return uint64(thread)<<16 | 1 }
	tid := unix.Gettid()
	another := takenBy(tid + int(places))
	for _, s := range []struct {
		what          string
		before, after uint64
		open          uint64
	}{
		{"free", 0, 0, 0},
		{"of another thread", another, another, 1},
		{"wanted by another thread", 1, 1, 0},
		{"of a call whose end was missed", takenBy(tid), 0, 1},
		{"of such a call, wanted by another thread", takenBy(tid) + 1, 1, 1},
	} {
		set(tid, s.before)
		if err := o.objs.CallsOpen.Set(s.open); err != nil {
			t.Fatal(err)
		}
		check(t, s.what, c.exchange(t, o), 2, 0)
		var place tracerCallPlace
		if err := o.objs.CallPlaces.Lookup(uint32(tid)%places, &place); err != nil || place.Taken != s.after {
			t.Errorf("%s: %x then, want %x: %v", s.what, place.Taken, s.after, err)
		}
		open := [2]uint64{}
		if s.after == another {
			open[0] = 1
		}
		if n := underWay(t, o); n != open {
			t.Errorf("%s: %d calls are under way, want %d", s.what, n, open)
		}
	}

	// One without a place whose end was missed, before one with a place.
	sent := make(chan error)
	go func() {
		_, err := unix.Write(c.client, []byte("GET / HTTP/1.1\r\n\r\n"))
		sent <- err
	}()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	key := uint64(os.Getpid())<<32 | uint64(tid)
	err := errors.Join(o.objs.Calls.Put(key, tracerCall{}), o.objs.CallsApart.Set(uint64(1)), o.objs.CallsOpen.Set(uint64(1)))
	if err != nil {
		t.Fatal(err)
	}
	set(tid, 0)
	if _, err := unix.Read(c.server, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	var apart tracerCall
	if err := o.objs.Calls.Lookup(key, &apart); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a call whose end was missed is there still: %v", err)
	}
	if n := underWay(t, o); n != [2]uint64{} {
		t.Errorf("%d calls are under way", n)
	}

	pid, end := process(t)
	set(pid, takenBy(pid))
	if err := o.objs.CallsOpen.Set(uint64(1)); err != nil {
		t.Fatal(err)
	}
	end()
	var place tracerCallPlace
	if err := o.objs.CallPlaces.Lookup(uint32(pid)%places, &place); err != nil || place.Taken != 0 {
		t.Errorf("taken by a thread that has ended: %x, %v", place.Taken, err)
	}
	if n := underWay(t, o); n[0] != 0 {
		t.Errorf("%d calls are under way", n)
	}
}

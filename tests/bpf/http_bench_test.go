package bpf_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// httpAlone is a helper: a server of one connection, by itself. Before each call it touches
// so many bytes of other memory (BYTES), by which what is in caches goes, of pages too. A line of input
// with a number has it answer as many requests, each by two writes, as uvicorn does,
// but by calls that others on the host seldom make.
func httpAlone() {
	size, err := strconv.Atoi(os.Args[1])
	die(err)
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	die(err)
	die(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	die(unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	die(err)
	fmt.Printf("ready %d\n", at.(*unix.SockaddrInet4).Port)
	var n int
	if _, err := fmt.Scan(&n); err != nil {
		return
	}
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	die(err)
	die(unix.Connect(client, at))
	server, _, err := unix.Accept(l)
	die(err)
	die(unix.SetsockoptInt(server, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	other, err := unix.Mmap(-1, 0, size+1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	die(err)
	_ = unix.Madvise(other, unix.MADV_NOHUGEPAGE) // not on all kernels
	step := func(done int, err error) {
		if done == 0 && err == nil {
			err = unix.ECONNRESET
		}
		die(err)
		for i := 0; i < len(other); i += 64 {
			other[i]++
		}
	}
	request := fmt.Appendf(nil, "POST /generate HTTP/1.1\r\nHost: a\r\n\r\n%0400d", 1)
	head, body := []byte(rawAnswer[:len(rawAnswer)-2]), pattern(600, 0)
	b := make([]byte, 64<<10)
	for range n {
		step(1, unix.Sendto(client, request, 0, nil))
		step(unix.Readv(server, [][]byte{b}))
		step(unix.Writev(server, [][]byte{head}))
		step(unix.Writev(server, [][]byte{body}))
		for got := 0; got < len(head)+len(body); {
			n, _, err := unix.Recvfrom(client, b, 0)
			step(n, err)
			got += n
		}
	}
	fmt.Println("done")
	fmt.Scan(&n)
}

// BenchmarkHTTP measures the programs on the reads and writes of a connection that is known,
// by what the server does in between. The kernel's counting is in it.
func BenchmarkHTTP(b *testing.B) {
	needRoot(b)
	stats, err := bpf.EnableStats()
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, size := range []int{0, 8 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("between=%dMiB", size>>20), func(b *testing.B) {
			o := load(b, bpf.Options{RingBytes: 64 << 20})
			cmd := exec.Command("/proc/self/exe", strconv.Itoa(size))
			cmd.Env, cmd.Stderr = append(os.Environ(), helperEnv+"=httpalone"), os.Stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			defer cmd.Wait()
			defer in.Close()
			var port int
			if _, err := fmt.Fscanf(out, "ready %d\n", &port); err != nil {
				b.Fatal(err)
			}
			attachTo(b, o, &target.Process{PID: cmd.Process.Pid, Role: target.RoleAPIServer, Ports: []int{port}})
			before, err := o.Stats()
			if err != nil {
				b.Fatal(err)
			}
			fmt.Fprintln(in, b.N)
			var done string
			if _, err := fmt.Fscan(out, &done); err != nil {
				b.Fatal(err)
			}
			after, err := o.Stats()
			if err != nil {
				b.Fatal(err)
			}
			var all float64
			for _, p := range []struct {
				name  string
				calls float64
			}{{"enter_readv", 1}, {"exit_readv", 1}, {"enter_writev", 2}, {"exit_writev", 2}} {
				x, y := after["http_"+p.name], before["http_"+p.name]
				each := float64(x.Runtime-y.Runtime) / float64(x.Runs-y.Runs)
				b.ReportMetric(each, "ns/"+p.name)
				all += p.calls * each
			}
			b.ReportMetric(all, "ns/request")
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(losses(b, o)[event.LossRingFull])/float64(b.N), "lost/request")
		})
	}
}

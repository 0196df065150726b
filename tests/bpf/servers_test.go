package bpf_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(1)
	}
}

// httpServer is a helper: an HTTP server on a port that it prints. Its answers are
// chosen by path.
func httpServer() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	die(err)
	mux := http.NewServeMux()
	// echo answers with the length of the request's body.
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d", n)
	})
	// bytes answers with a body of n bytes.
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		w.Header().Set("Content-Length", strconv.Itoa(n))
		w.Write(pattern(n, 0))
	})
	// stream answers with n events, each a chunk and a write of its own.
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			fmt.Fprintf(w, "data: %0*d\n\n", 100, i)
			w.(http.Flusher).Flush()
		}
	})
	// wait answers when the client has gone: never.
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	// fetch is a client of another server.
	mux.HandleFunc("/fetch", func(w http.ResponseWriter, r *http.Request) {
		resp, err := http.Get("http://" + r.FormValue("from"))
		if err == nil {
			io.Copy(w, resp.Body)
			resp.Body.Close()
		}
	})
	// vector answers by one writev of n pieces of a size.
	mux.HandleFunc("/vector", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		conn, _, err := w.(http.Hijacker).Hijack()
		die(err)
		size := 100
		if v := r.FormValue("size"); v != "" {
			size, _ = strconv.Atoi(v)
		}
		pieces := net.Buffers{[]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")}
		for i := range n {
			pieces = append(pieces, pattern(size, i))
		}
		pieces.WriteTo(conn)
		conn.Close()
	})
	fmt.Printf("ready %d\n", l.Addr().(*net.TCPAddr).Port)
	die(http.Serve(l, mux))
}

// Ways of raw servers to read and to write.
var (
	rawReads = map[string]func(fd int, b []byte) (int, error){
		"read":  unix.Read,
		"readv": func(fd int, b []byte) (int, error) { return unix.Readv(fd, [][]byte{b[:7], {}, b[7:]}) },
		"recvfrom": func(fd int, b []byte) (int, error) {
			// What is peeked at is read again.
			_, _, _ = unix.Recvfrom(fd, b, unix.MSG_PEEK)
			n, _, err := unix.Recvfrom(fd, b, 0)
			return n, err
		},
		"recvmsg": func(fd int, b []byte) (int, error) {
			_, _, _, _, _ = unix.RecvmsgBuffers(fd, [][]byte{b}, nil, unix.MSG_PEEK)
			n, _, _, _, err := unix.RecvmsgBuffers(fd, [][]byte{b[:5], b[5:]}, nil, 0)
			return n, err
		},
	}
	rawWrites = map[string]func(fd int, b []byte) error{
		"write":  func(fd int, b []byte) error { _, err := unix.Write(fd, b); return err },
		"writev": func(fd int, b []byte) error { _, err := unix.Writev(fd, [][]byte{b[:9], b[9:]}); return err },
		"sendto": func(fd int, b []byte) error { return unix.Send(fd, b, unix.MSG_NOSIGNAL) },
		"sendmsg": func(fd int, b []byte) error {
			_, err := unix.SendmsgBuffers(fd, [][]byte{b[:3], b[3:11], b[11:]}, nil, nil, unix.MSG_NOSIGNAL)
			return err
		},
	}
)

const rawAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// eights writes eight bytes at a time, as signals between threads are.
func eights(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b[:min(8, len(b))])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// signalled gives and takes signals on a descriptor with the number of the next one that is
// opened, and leaves it there if it is to be replaced.
func signalled(replaced bool) (fd int) {
	fd, err := unix.Eventfd(0, 0)
	die(err)
	for range 3 {
		die(eights(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}))
		_, err = unix.Read(fd, make([]byte, 8))
		die(err)
	}
	if !replaced {
		die(unix.Close(fd))
	}
	return fd
}

// rawServer is a helper: a server that reads and writes by the system calls that
// its arguments name (READ WRITE), one connection at a time, one request a read. With a
// third argument the descriptor of a connection was one of signals before: "reused" or
// "replaced".
func rawServer() {
	read, write := rawReads[os.Args[1]], rawWrites[os.Args[2]]
	if os.Args[2] == "eights" {
		write = eights
	}
	was := ""
	if len(os.Args) > 3 {
		was = os.Args[3]
	}
	l, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	die(err)
	die(unix.Bind(l, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}))
	die(unix.Listen(l, 8))
	name, err := unix.Getsockname(l)
	die(err)
	fmt.Printf("ready %d\n", name.(*unix.SockaddrInet6).Port)
	for {
		place := -1
		if was != "" {
			place = signalled(was == "replaced")
		}
		fd, _, err := unix.Accept(l)
		die(err)
		if was == "replaced" {
			die(unix.Dup3(fd, place, 0))
			die(unix.Close(fd))
			fd = place
		} else if was == "reused" && fd != place {
			die(fmt.Errorf("descriptor %d, want %d", fd, place))
		}
		b := make([]byte, 64<<10)
		for {
			n, err := read(fd, b)
			if n <= 0 || err != nil {
				break
			}
			if write(fd, []byte(rawAnswer)) != nil {
				break
			}
		}
		unix.Close(fd)
	}
}

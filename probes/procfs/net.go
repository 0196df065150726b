package procfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxFDs bounds the descriptors looked at in one process.
const maxFDs = 1 << 16

// Listening returns the listening TCP sockets of the process's network namespace:
// inode -> port.
func (f FS) Listening(pid int) (map[uint64]int, error) {
	inodes := make(map[uint64]int)
	err := f.eachTCP(pid, func(b []byte) { parseListeners(b, inodes) })
	return inodes, err
}

// eachTCP calls parse with the tables of TCP sockets of the process's network namespace.
func (f FS) eachTCP(pid int, parse func([]byte)) error {
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := readAll(f.path(pid, "net", name), maxMaps)
		if err != nil {
			if name == "tcp6" {
				continue // no IPv6
			}
			return fmt.Errorf("reading the sockets of process %d: %w", pid, err)
		}
		parse(b)
	}
	return nil
}

// NetNS names the network namespace of a process.
func (f FS) NetNS(pid int) (string, error) {
	ns, err := os.Readlink(f.path(pid, "ns", "net"))
	return ns, gone(err)
}

// Conn is an established TCP connection as one end of it sees it.
type Conn struct{ Local, Remote netip.AddrPort }

// Connections returns the established TCP connections of the process's network namespace
// by the inode of the socket. IPv4 addresses are so in sockets of IPv6, too.
func (f FS) Connections(pid int) (map[uint64]Conn, error) {
	conns := make(map[uint64]Conn)
	err := f.eachTCP(pid, func(b []byte) { parseConnections(b, conns) })
	return conns, err
}

// Ports returns the ports, sorted, of those listening sockets to which one of the
// process's own descriptors refers.
func (f FS) Ports(pid int, listening map[uint64]int) ([]int, error) {
	if len(listening) == 0 {
		return nil, nil
	}
	sockets, err := f.Sockets(pid)
	if err != nil {
		return nil, err
	}
	var ports []int
	for _, ino := range sockets {
		if port, ok := listening[ino]; ok {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// Sockets returns the inodes of the sockets to which the process's descriptors refer.
func (f FS) Sockets(pid int) ([]uint64, error) {
	dir, err := os.Open(f.path(pid, "fd"))
	if err != nil {
		return nil, fmt.Errorf("reading the descriptors of process %d: %w", pid, gone(err))
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxFDs)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("reading the descriptors of process %d: %w", pid, gone(err))
	}
	var inodes []uint64
	for _, n := range names {
		link, err := os.Readlink(f.path(pid, "fd", n))
		if err != nil {
			continue
		}
		if ino, ok := socketInode(link); ok {
			inodes = append(inodes, ino)
		}
	}
	return inodes, nil
}

func socketInode(link string) (uint64, bool) {
	s, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	ino, err := strconv.ParseUint(strings.TrimSuffix(s, "]"), 10, 64)
	return ino, err == nil
}

// parseListeners adds the listening sockets of a /proc/net/tcp table: inode -> port.
func parseListeners(b []byte, into map[uint64]int) {
	const listen = "0A" // TCP_LISTEN
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if len(w) < 10 || w[3] != listen {
			continue
		}
		_, hexPort, ok := strings.Cut(w[1], ":")
		port, err1 := strconv.ParseUint(hexPort, 16, 16)
		ino, err2 := strconv.ParseUint(w[9], 10, 64)
		if ok && err1 == nil && err2 == nil && ino != 0 {
			into[ino] = int(port)
		}
	}
}

// parseConnections adds the established connections of a /proc/net/tcp table.
func parseConnections(b []byte, into map[uint64]Conn) {
	const established = "01" // TCP_ESTABLISHED
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if len(w) < 10 || w[3] != established {
			continue
		}
		local, ok1 := parseAddr(w[1])
		remote, ok2 := parseAddr(w[2])
		ino, err := strconv.ParseUint(w[9], 10, 64)
		if ok1 && ok2 && err == nil && ino != 0 {
			into[ino] = Conn{local, remote}
		}
	}
}

// parseAddr reads an address and port of a /proc/net/tcp table: words of 32 bits as the
// host has them.
func parseAddr(text string) (netip.AddrPort, bool) {
	hexAddr, hexPort, ok := strings.Cut(text, ":")
	port, err := strconv.ParseUint(hexPort, 16, 16)
	b, err2 := hex.DecodeString(hexAddr)
	if !ok || err != nil || err2 != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), ok
}

// ContainerID returns the container that the process's cgroup names, "" if none:
// the 64 hexadecimal digits that Docker, containerd, CRI-O and Podman use.
func (f FS) ContainerID(pid int) (string, error) {
	b, err := readAll(f.path(pid, "cgroup"), maxFile)
	if err != nil {
		return "", fmt.Errorf("reading the cgroup of process %d: %w", pid, err)
	}
	id := containerID(b)
	if id != "" {
		return id, nil
	}
	// In a private cgroup namespace the path is cut to "/": runtimes mount the
	// files of the container from a directory with its id.
	b, err = readAll(f.path(pid, "mountinfo"), maxFile)
	if err != nil {
		return "", fmt.Errorf("reading the mounts of process %d: %w", pid, err)
	}
	return containerIDFromMounts(b), nil
}

func containerID(cgroup []byte) string {
	for line := range strings.Lines(string(cgroup)) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		// The innermost element that has an id is the container; CRI-O and Podman
		// put processes of a container into a child group.
		elems := strings.Split(parts[2], "/")
		for _, e := range slices.Backward(elems) {
			if id := hexID(e); id != "" {
				return id
			}
		}
	}
	return ""
}

// hexID finds the id in one path element: "ID", "docker-ID.scope",
// "cri-containerd-ID.scope", "crio-ID.scope", "libpod-ID.scope".
func hexID(e string) string {
	e = strings.TrimSuffix(e, ".scope")
	if i := strings.LastIndexAny(e, "-:"); i >= 0 {
		e = e[i+1:]
	}
	if len(e) != 64 {
		return ""
	}
	for i := range len(e) {
		if c := e[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return ""
		}
	}
	return e
}

// containerIDFromMounts finds the id in the source of the files that a runtime
// mounts into a container (field 4, the root of the mount in its file system).
func containerIDFromMounts(mountinfo []byte) string {
	for line := range strings.Lines(string(mountinfo)) {
		w := strings.Fields(line)
		if len(w) < 5 {
			continue
		}
		switch w[4] {
		case "/etc/hostname", "/etc/hosts", "/etc/resolv.conf":
		default:
			continue
		}
		// .../containers/ID/hostname; Kubernetes' "sandboxes/ID" is the pod's, not the container's.
		dir := path.Dir(w[3])
		if strings.HasSuffix(path.Dir(dir), "containers") {
			if id := hexID(path.Base(dir)); id != "" {
				return id
			}
		}
	}
	return ""
}

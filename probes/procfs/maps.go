package procfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mapping is one line of /proc/PID/maps.
type Mapping struct {
	Start, End uint64
	Perm       string // "r-xp"
	Offset     uint64 // in the file
	Dev        uint64 // as in stat(2); differs from it on some file systems (btrfs, overlayfs)
	Ino        uint64 // 0: no file
	Path       string // as the process sees it; "[heap]" and the like
	Deleted    bool
}

// Exec reports whether the mapping is executable.
func (m Mapping) Exec() bool { return len(m.Perm) > 2 && m.Perm[2] == 'x' }

// Maps reads the mappings of the process in address order. More than 32 MiB of
// text is cut at the last whole line.
func (f FS) Maps(pid int) ([]Mapping, error) {
	file, err := os.Open(f.path(pid, "maps"))
	if err != nil {
		return nil, fmt.Errorf("reading the mappings of process %d: %w", pid, gone(err))
	}
	defer file.Close()
	m, err := ParseMaps(io.LimitReader(file, maxMaps))
	if err != nil {
		return nil, fmt.Errorf("reading the mappings of process %d: %w", pid, gone(err))
	}
	return m, nil
}

// ParseMaps reads the text of a maps file.
func ParseMaps(r io.Reader) ([]Mapping, error) {
	var out []Mapping
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 8192), 1<<16)
	for sc.Scan() {
		m, err := parseMapping(sc.Bytes())
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, sc.Err()
}

func parseMapping(line []byte) (Mapping, error) {
	var m Mapping
	rest := line
	next := func() string {
		rest = bytes.TrimLeft(rest, " ")
		w, r, _ := bytes.Cut(rest, []byte(" "))
		rest = r
		return string(w)
	}
	fail := func(what string) (Mapping, error) {
		return Mapping{}, fmt.Errorf("mapping line %q: bad %s", line, what)
	}
	from, to, ok := strings.Cut(next(), "-")
	var err1, err2 error
	m.Start, err1 = strconv.ParseUint(from, 16, 64)
	m.End, err2 = strconv.ParseUint(to, 16, 64)
	if !ok || err1 != nil || err2 != nil || m.End < m.Start {
		return fail("address range")
	}
	m.Perm = next()
	if len(m.Perm) != 4 {
		return fail("permissions")
	}
	if m.Offset, err1 = strconv.ParseUint(next(), 16, 64); err1 != nil {
		return fail("offset")
	}
	maj, min, ok := strings.Cut(next(), ":")
	ma, err1 := strconv.ParseUint(maj, 16, 32)
	mi, err2 := strconv.ParseUint(min, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return fail("device")
	}
	m.Dev = unix.Mkdev(uint32(ma), uint32(mi))
	if m.Ino, err1 = strconv.ParseUint(next(), 10, 64); err1 != nil {
		return fail("inode")
	}
	path := string(bytes.TrimLeft(rest, " "))
	path, m.Deleted = strings.CutSuffix(path, " (deleted)")
	m.Path = strings.ReplaceAll(path, `\012`, "\n") // the only escape the kernel uses here
	return m, nil
}

// MapFile returns the path of the mapped file under map_files, which reaches the
// very file that is mapped even when it was deleted, replaced or hidden by a
// mount. Opening it needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
func (f FS) MapFile(pid int, m Mapping) string {
	return f.path(pid, "map_files", fmt.Sprintf("%x-%x", m.Start, m.End))
}

// ErrReplaced says that the path of a mapping leads to no file, or to another than
// the one mapped.
var ErrReplaced = errors.New("file was replaced or removed on disk")

// OpenMapped opens the file behind a mapping, and says by which path: through
// map_files, or, where that is not allowed, through the process's root if the
// inode there is the one that is mapped.
func (f FS) OpenMapped(pid int, m Mapping) (*os.File, string, error) {
	if m.Ino == 0 || !strings.HasPrefix(m.Path, "/") {
		return nil, "", fmt.Errorf("mapping %x of process %d has no file", m.Start, pid)
	}
	p := f.MapFile(pid, m)
	if file, err := openRegular(p); err == nil {
		return file, p, nil
	}
	p = f.InRoot(pid, m.Path)
	file, err := openRegular(p)
	if errors.Is(err, fs.ErrNotExist) {
		if _, serr := f.Stat(pid); serr != nil {
			return nil, "", serr
		}
		err = fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("opening %s of process %d: %w", m.Path, pid, err)
	}
	st, err := file.Stat()
	if err == nil && inode(st) != m.Ino {
		err = ErrReplaced
	}
	if err != nil {
		file.Close()
		return nil, "", fmt.Errorf("opening %s of process %d: %w", m.Path, pid, err)
	}
	return file, p, nil
}

// InRoot returns the path by which this process reaches path in the root of
// another. Symbolic links on the way are resolved in this process's root:
// use OpenInRoot for files whose path the other process chose.
func (f FS) InRoot(pid int, path string) string { return f.path(pid, "root", filepath.Clean("/"+path)) }

// OpenInRoot opens a regular file by its path in the process's mount namespace.
// Symbolic links, absolute ones too, are resolved inside the process's root.
func (f FS) OpenInRoot(pid int, path string) (*os.File, error) {
	root, err := unix.Open(f.path(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s of process %d: %w", path, pid, gone(err))
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, strings.TrimLeft(filepath.Clean("/"+path), "/"), &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("opening %s of process %d: %w", path, pid, err)
	}
	file := os.NewFile(uintptr(fd), path)
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		file.Close()
		if err == nil {
			err = errors.New("not a regular file")
		}
		return nil, fmt.Errorf("opening %s of process %d: %w", path, pid, err)
	}
	return file, nil
}

// openRegular opens a file without blocking on a FIFO or a device.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// maxLinks bounds the symbolic links followed in one path, as the kernel does.
const maxLinks = 40

// Resolve returns the path of an existing regular file in the process's root
// with all symbolic links resolved inside that root.
func (f FS) Resolve(pid int, name string) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("resolving %s of process %d: %w", name, pid, err)
	}
	done := "/"
	todo := strings.Split(filepath.Clean("/"+name), "/")
	for links := 0; len(todo) > 0; {
		elem := todo[0]
		todo = todo[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			done = filepath.Dir(done)
			continue
		}
		next := filepath.Join(done, elem)
		st, err := os.Lstat(f.InRoot(pid, next))
		if err != nil {
			return fail(err)
		}
		if st.Mode()&os.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return fail(syscall.ELOOP)
		}
		to, err := os.Readlink(f.InRoot(pid, next))
		if err != nil {
			return fail(err)
		}
		if strings.HasPrefix(to, "/") {
			done = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	file, err := f.OpenInRoot(pid, done)
	if err != nil {
		return fail(err)
	}
	file.Close()
	return done, nil
}

func inode(st fs.FileInfo) uint64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Ino
	}
	return 0
}

// FileOffset returns where in its file the byte at an address of a process is.
func (f FS) FileOffset(pid int, addr uint64) (uint64, error) {
	maps, err := f.Maps(pid)
	if err != nil {
		return 0, err
	}
	for _, m := range maps {
		if m.Start <= addr && addr < m.End {
			return addr - m.Start + m.Offset, nil
		}
	}
	return 0, fmt.Errorf("no mapping of process %d holds %#x", pid, addr)
}

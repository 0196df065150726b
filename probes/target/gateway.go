package target

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"inferspan/probes/procfs"
)

// gatewaysOf returns the gateways that pass requests on to the servers of a group: those
// that started them, those whose arguments name a port on which they listen, and those
// that are connected to such a port.
func (s *scan) gatewaysOf(g []*proc) []*proc {
	var out []*proc
	for _, q := range s.procs {
		if q.Role == RoleGateway && q != g[0] && (s.descends(g, q.PID) || names(q.cmdline, g) || names(q.addresses(), g) || s.connected(q, g)) {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, func(a, b *proc) int { return a.PID - b.PID })
	return out
}

// descends tells whether a process of a group descends from pid.
func (s *scan) descends(g []*proc, pid int) bool {
	for _, p := range g {
		at := p.PPID
		for range maxDepth {
			if at == pid {
				return true
			}
			if at <= 1 {
				break
			}
			at = s.parent[at]
		}
	}
	return false
}

// addresses are those that the interpreter of a gateway has: a title may have taken the
// place of its command line.
func (p *proc) addresses() []string {
	if p.interp == nil || p.eng.addresses == nil {
		return nil
	}
	return p.eng.addresses(p)
}

// connected tells whether a gateway has a connection to a port on which a server of a
// group listens, both ends of which are seen.
func (s *scan) connected(gate *proc, g []*proc) bool {
	var mine []procfs.Conn
	for _, p := range g {
		if p.Role != RoleAPIServer && p.Role != RoleLauncher || len(p.Ports) == 0 {
			continue
		}
		if mine == nil {
			if mine = s.connections(gate.PID); len(mine) == 0 {
				return false
			}
		}
		ns, err := s.fs.NetNS(p.PID)
		if other, err2 := s.fs.NetNS(gate.PID); err != nil || err2 != nil || ns != other {
			continue // the same address may be that of another host there
		}
		for _, c := range s.connections(p.PID) {
			if slices.Contains(p.Ports, int(c.Local.Port())) && slices.Contains(mine, procfs.Conn{Local: c.Remote, Remote: c.Local}) {
				return true
			}
		}
	}
	return false
}

// connections returns the established connections of a process.
func (s *scan) connections(pid int) (out []procfs.Conn) {
	ns, err := s.fs.NetNS(pid)
	if err != nil {
		return nil
	}
	all, ok := s.conns[ns]
	if !ok {
		if all, err = s.fs.Connections(pid); err != nil {
			return nil
		}
		s.conns[ns] = all
	}
	sockets, _ := s.fs.Sockets(pid)
	for _, ino := range sockets {
		if c, ok := all[ino]; ok {
			out = append(out, c)
		}
	}
	return out
}

// names tells whether a gateway's arguments have the address of a server of a group on
// this host: a URL with the port, the host of which is a loopback address or a name that
// stands for it. Other addresses could be those of other hosts.
func names(cmdline []string, g []*proc) bool {
	for _, a := range cmdline {
		u, err := url.Parse(a)
		if err != nil || u.Host == "" || !(strings.HasPrefix(u.Scheme, "http") || strings.HasPrefix(u.Scheme, "grpc")) {
			continue
		}
		port, err := strconv.Atoi(u.Port())
		if err != nil {
			continue
		}
		host := u.Hostname()
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback() && !ip.IsUnspecified()) {
			continue
		}
		for _, p := range g {
			if (p.Role == RoleAPIServer || p.Role == RoleLauncher) && slices.Contains(p.Ports, port) {
				return true
			}
		}
	}
	return false
}

package target

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// gatewaysOf returns the gateways that pass requests on to the servers of a group: those
// that started them, and those whose command line names a port on which they listen.
func (s *scan) gatewaysOf(g []*proc) []*proc {
	var out []*proc
	for _, q := range s.procs {
		if q.Role == RoleGateway && q != g[0] && (s.descends(g, q.PID) || names(q.cmdline, g)) {
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

package target

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"inferspan/probes/python"
)

// Where a fact comes from.
const (
	sourceLive     = "live"
	sourceCommand  = "command line"
	sourceDistInfo = "dist-info"
)

// engine puts the facts of a group of processes together. Without an engine
// among them it returns nil and the reason.
func (s *scan) engine(g []*proc) (*Engine, string) {
	cores := withRole(g, RoleCore)
	servers := withRole(g, RoleAPIServer)
	k := g[0].eng
	if len(withRole(g, RoleGateway)) == len(g) {
		return nil, "passes requests on to engines, which are listed by themselves"
	}
	if len(cores) == 0 && len(servers) == 0 && len(withRole(g, RoleLauncher)) == 0 {
		return nil, k.noEngine
	}
	if only := withRole(g, RoleLauncher); len(only) == len(g) && only[0].tree == manyTrees {
		return nil, "starts engines, which are listed by themselves"
	}
	e := &Engine{Kind: k.name, Sources: make(map[string]string)}
	s.version(e, g)
	k.config(s, e, g)
	if e.Generation != "V0" {
		k.messages.layouts(e, g)
	}
	e.Tokenizer = s.tokenizer(g)
	g = append(s.gatewaysOf(g), g...)
	for _, p := range g {
		e.Processes = append(e.Processes, p.Process)
	}
	s.problems(e, g)
	if len(e.Sources) == 0 {
		e.Sources = nil
	}
	return e, ""
}

func withRole(g []*proc, r Role) []*proc {
	var out []*proc
	for _, p := range g {
		if p.Role == r {
			out = append(out, p)
		}
	}
	return out
}

func (e *Engine) problem(format string, args ...any) {
	e.Problems = append(e.Problems, fmt.Sprintf(format, args...))
}

// problems says what cannot be traced.
func (s *scan) problems(e *Engine, g []*proc) {
	k := g[len(g)-1].eng
	if len(withRole(g, RoleCore)) == 0 {
		e.problem("no %s runs on this host (it is starting, or on another node): only entry spans", k.roleName(RoleCore))
	}
	k.problems(e, g)
	for _, p := range withRole(g, RoleAPIServer) {
		if p.TLS {
			e.problem("API server %d serves HTTP over TLS: no entry spans", p.PID)
		}
		if p.UDS != "" {
			e.problem("API server %d serves HTTP on the Unix socket %s: no entry spans", p.PID, p.UDS)
		}
	}
	for _, p := range g {
		if p.pyErr != nil {
			e.problem("process %d: %v", p.PID, p.pyErr)
		}
	}
}

// live returns the processes whose interpreter can be read, those first that say
// most about the engine.
func live(g []*proc) []*proc {
	var out []*proc
	for _, r := range []Role{RoleCore, RoleAPIServer, RoleOffline, RoleLauncher, RoleWorker, RoleCoordinator, RoleController, RoleDetokenizer, RoleRouter, RoleOther} {
		for _, p := range withRole(g, r) {
			if p.interp != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// version finds the version of the engine: the one that the live module states, with
// the local part ("+cpu") that the name of the installed package adds.
func (s *scan) version(e *Engine, g []*proc) {
	for _, p := range live(g) {
		for _, module := range g[0].eng.versions {
			v, err := p.interp.Path(module, "__version__")
			if err != nil {
				continue
			}
			if text, err := v.Str(); err == nil && text != "" && text != "dev" {
				e.Version = text
				e.Sources["version"] = sourceLive
				break
			}
		}
		if e.Version != "" {
			break
		}
	}
	for _, p := range g {
		full := s.distVersion(p, e.Version)
		if full == "" || full == e.Version {
			continue
		}
		if e.Version == "" || strings.HasPrefix(full, e.Version+"+") {
			e.Version = full
			e.Sources["version"] = sourceDistInfo
		}
		break
	}
}

// maxDist bounds the entries of a site-packages directory that are looked at.
const maxDist = 20000

// distVersion returns the version in the name of the installed package
// (vllm-0.32.0+cpu.dist-info) beside the engine's package in a process: the one that
// has the live version, with its local part; any, if that is not known. "" if none.
func (s *scan) distVersion(p *proc, version string) string {
	dir := s.packageDir(p)
	if dir == "" {
		return ""
	}
	d, err := os.Open(s.fs.InRoot(p.PID, dir))
	if err != nil {
		return ""
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxDist)
	slices.Sort(names)
	found := ""
	for _, n := range names {
		v, ok := strings.CutPrefix(n, p.eng.dist+"-")
		if !ok {
			continue
		}
		if v, ok = strings.CutSuffix(v, ".dist-info"); !ok {
			continue
		}
		if version == "" || v == version || strings.HasPrefix(v, version+"+") {
			found = max(found, v) // the longer, if one adds a local part
		}
	}
	return found
}

// packageDir returns the directory that holds the engine's package, as the process
// sees it.
func (s *scan) packageDir(p *proc) string {
	if p.interp != nil {
		if v, err := p.interp.Path(p.eng.modules[0], "__file__"); err == nil {
			if f, err := v.Str(); err == nil && path.IsAbs(f) {
				return path.Dir(path.Dir(f))
			}
		}
	}
	maps, err := s.fs.Maps(p.PID)
	if err != nil {
		return ""
	}
	if dir := packageMapped(maps, p.eng.modules[0]); dir != "" {
		return path.Dir(dir)
	}
	// An engine without libraries of its own lies beside those of others.
	for _, m := range maps {
		if dir, _, ok := strings.Cut(m.Path, "/site-packages/"); ok && m.Ino != 0 {
			return dir + "/site-packages"
		}
	}
	return ""
}

// set gives a fact a value unless it has one.
func (e *Engine) set(name, source string, to *string, val string) {
	if *to == "" && val != "" {
		*to = val
		e.Sources[name] = source
	}
}

// oneOrMore reads a str or a list of them.
func oneOrMore(v python.Value) []string {
	if s, err := v.Str(); err == nil {
		return []string{s}
	}
	elems, err := v.List(maxMembers)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range elems {
		s, err := e.Str()
		if err != nil {
			return nil
		}
		out = append(out, s)
	}
	return out
}

func (e *Engine) served(names []string, source string) {
	if len(e.ServedNames) == 0 && len(names) > 0 {
		e.ServedNames = names
		e.Sources["served_names"] = source
	}
}

// markServers notes how the API servers of an engine, which share their
// arguments, are reached.
func markServers(g []*proc, tls bool, uds string) {
	for _, p := range g {
		if p.Role == RoleAPIServer {
			p.TLS = p.TLS || tls
			if uds != "" {
				p.UDS = uds
			}
		}
	}
}

// isGone reports whether an error means that the process ended.
func isGone(err error) bool { return errors.Is(err, ErrGone) }

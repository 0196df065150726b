package target

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
	if len(cores) == 0 && len(servers) == 0 && len(withRole(g, RoleLauncher)) == 0 {
		return nil, reasonNoEngine
	}
	if only := withRole(g, RoleLauncher); len(only) == len(g) && only[0].kind == supervisor {
		return nil, "starts engines, which are listed by themselves"
	}
	e := &Engine{Kind: "vllm", Generation: "V1", Sources: make(map[string]string)}
	if slices.ContainsFunc(g, func(p *proc) bool { return p.v0 }) {
		e.Generation = "V0"
	}
	s.version(e, g)
	s.layouts(e, g)
	s.config(e, g)
	e.Tokenizer = s.tokenizer(g)
	for _, p := range g {
		e.Processes = append(e.Processes, p.Process)
	}
	s.problems(e, g)
	if len(e.Sources) == 0 {
		e.Sources = nil
	}
	return e, ""
}

// noReceipts says what is lost when deliveries to a front end are not seen.
const noReceipts = "time to first token and end-to-end time end when the core sends, not when the front end receives"

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
	cores := withRole(g, RoleCore)
	servers := withRole(g, RoleAPIServer)
	if e.Generation == "V0" {
		e.problem("vLLM's V0 engine pickles its messages, which are not read: no engine spans and no metrics, only entry spans")
	}
	if len(cores) == 0 {
		e.problem("no engine core runs on this host (it is starting, or on another node): only entry spans")
	}
	for _, p := range cores {
		if p.InProcess {
			e.problem("the engine core is part of program %d and sends no messages: what its requests do is read from its memory", p.PID)
		}
		if p.ZMQ == nil && !p.v0 && !p.InProcess {
			e.problem("engine core %d maps no libzmq (it is starting, or libzmq is linked in): its messages cannot be seen", p.PID)
		}
	}
	for _, p := range servers {
		switch {
		case p.interp == nil && p.pyErr == nil:
			e.problem("API server %d is the Rust front end, which receives without libzmq: %s", p.PID, noReceipts)
		case p.ZMQ == nil && len(cores) > 0 && e.Generation == "V1":
			e.problem("API server %d maps no libzmq: %s", p.PID, noReceipts)
		}
		if p.TLS {
			e.problem("API server %d serves HTTP over TLS: no entry spans", p.PID)
		}
		if p.UDS != "" {
			e.problem("API server %d serves HTTP on the Unix socket %s: no entry spans", p.PID, p.UDS)
		}
	}
	if e.LogStats != nil && !*e.LogStats {
		e.problem("statistics are off (--disable-log-stats, the default of the class LLM): the engine sends no request events and no scheduler statistics")
	}
	for _, p := range g {
		if p.pyErr != nil {
			e.problem("process %d: %v", p.PID, p.pyErr)
		}
	}
	if e.FactSource == "" && e.Generation == "V1" {
		e.problem("the layout of the messages could not be read from a live process")
	}
}

// live returns the processes whose interpreter can be read, those first that say
// most about the engine.
func live(g []*proc) []*proc {
	var out []*proc
	for _, r := range []Role{RoleCore, RoleAPIServer, RoleOffline, RoleLauncher, RoleWorker, RoleCoordinator, RoleOther} {
		for _, p := range withRole(g, r) {
			if p.interp != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// version finds the version of vLLM: the one that the live module states, with
// the local part ("+cpu") that the name of the installed package adds.
func (s *scan) version(e *Engine, g []*proc) {
	for _, p := range live(g) {
		for _, module := range []string{"vllm.version", "vllm._version", "vllm"} {
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

// isGone reports whether an error means that the process ended.
func isGone(err error) bool { return errors.Is(err, ErrGone) }

package target

import (
	"errors"
	"slices"
	"strings"

	"inferspan/probes/python"
)

// vllmConfigure fills in what the engine was configured with: from the configuration
// object of a live core, then from the parsed arguments of a live front end, then
// from the command lines.
func vllmConfigure(_ *scan, e *Engine, g []*proc) {
	e.Generation = "V1"
	if slices.ContainsFunc(g, func(p *proc) bool { return p.v0 }) {
		e.Generation = "V0"
	}
	for _, p := range withRole(g, RoleCore) {
		if p.interp != nil && !p.v0 && e.coreConfig(p) {
			break
		}
	}
	for _, p := range g {
		if p.Role == RoleAPIServer || p.Role == RoleLauncher {
			if args, ok := p.arguments(); ok {
				e.serverArgs(args, g)
			}
		}
	}
	for _, p := range g {
		if p.Role == RoleAPIServer || p.Role == RoleLauncher {
			e.commandLine(flags{p.cmdline}, g)
		}
	}
}

// vllmConfig returns the VllmConfig of a core and, once that is made, its
// EngineCoreProc: local variables of the function that runs it, or, while it
// starts, what that function was called with.
func (p *proc) vllmConfig() (cfg, core python.Value, ok bool) {
	if p.kind == coreInProc {
		cfg, err := p.core.Attr("vllm_config")
		return cfg, p.core, err == nil && !cfg.IsNone()
	}
	if p.kind != coreProc || p.interp == nil {
		return cfg, core, false
	}
	core, err := p.frame.Local("engine_core")
	if err == nil && !core.IsNone() {
		if cfg, err = core.Attr("vllm_config"); err == nil && !cfg.IsNone() {
			return cfg, core, true
		}
	}
	if kwargs, err := p.frame.Local("kwargs"); err == nil {
		if cfg, err = kwargs.Key("vllm_config"); err == nil && !cfg.IsNone() {
			return cfg, python.Value{}, true
		}
	}
	return python.Value{}, python.Value{}, false
}

// logStats says whether a core sends events and statistics.
func (p *proc) logStats(core python.Value) (python.Value, error) {
	if core.Addr() != 0 {
		if v, err := core.Attr("log_stats"); err == nil {
			return v, nil
		}
		return core.Path("scheduler", "log_stats")
	}
	kwargs, err := p.frame.Local("kwargs")
	if err != nil {
		return python.Value{}, err
	}
	return kwargs.Key("log_stats")
}

// coreConfig reads the configuration of a core; false if it is not there (yet).
func (e *Engine) coreConfig(p *proc) bool {
	cfg, core, ok := p.vllmConfig()
	if !ok {
		return false
	}
	if v, err := p.logStats(core); err == nil {
		if on, err := v.Bool(); err == nil {
			e.LogStats = &on
			e.Sources["log_stats"] = sourceLive
		}
	}
	if v, err := cfg.Path("model_config", "model"); err == nil {
		if m, err := v.Str(); err == nil {
			e.set("model", sourceLive, &e.Model, m)
		}
	}
	if v, err := cfg.Path("model_config", "served_model_name"); err == nil {
		e.served(oneOrMore(v), sourceLive)
	}
	if v, err := cfg.Attr("kv_transfer_config"); err == nil {
		e.kvTransfer(v)
		e.kvLoads(core)
	}
	return true
}

// kvTransfer reads the role in prefill/decode disaggregation from a
// KVTransferConfig or None. kv_both plays either part from request to request:
// the role stays unknown.
func (e *Engine) kvTransfer(v python.Value) {
	if v.IsNone() {
		e.set("pd_role", sourceLive, &e.PDRole, "none")
		return
	}
	connector, err := v.Attr("kv_connector")
	if err == nil && connector.IsNone() {
		e.set("pd_role", sourceLive, &e.PDRole, "none")
		return
	}
	role, err := v.Attr("kv_role")
	if err != nil {
		return
	}
	if text, err := role.Str(); err == nil {
		e.set("pd_role", sourceLive, &e.PDRole, pdRole(text))
	}
}

// kvLoads says whether an engine core that has a KV connector shows which requests
// wait for it. In 0.28 and before they are in queues that a probe cannot go through.
func (e *Engine) kvLoads(core python.Value) {
	if core.Addr() == 0 || e.PDRole == "none" {
		return
	}
	sched, err := core.Attr("scheduler")
	if err != nil {
		return
	}
	_, err = sched.Attr("deferred_waiting")
	if shown := err == nil; shown || errors.Is(err, python.ErrNotFound) {
		e.KVLoads = &shown
		e.Sources["kv_loads"] = sourceLive
	}
}

func pdRole(kvRole string) string {
	switch kvRole {
	case "kv_producer":
		return "producer"
	case "kv_consumer":
		return "consumer"
	}
	return ""
}

// arguments finds the argparse.Namespace of a front end: the variable args of the
// function that shows the role or of another one of vLLM, or of the main module.
func (p *proc) arguments() (python.Value, bool) {
	if p.interp == nil {
		return python.Value{}, false
	}
	usable := func(args python.Value, err error) bool {
		if err != nil || args.IsNone() {
			return false
		}
		_, err = args.Attr("model")
		return err == nil
	}
	for _, f := range append([]python.Frame{p.frame}, p.frames...) {
		if !strings.Contains(f.File, "vllm/") {
			continue
		}
		if args, err := f.Local("args"); usable(args, err) {
			return args, true
		}
	}
	if args, err := p.interp.Path("__main__", "args"); usable(args, err) {
		return args, true
	}
	return python.Value{}, false
}

// text is an attribute that is a str, "" if there is none.
func text(v python.Value, attr string) string {
	a, err := v.Attr(attr)
	if err != nil {
		return ""
	}
	t, err := a.Str()
	if err != nil {
		return ""
	}
	return t
}

func (e *Engine) serverArgs(args python.Value, g []*proc) {
	e.set("model", sourceLive, &e.Model, text(args, "model"))
	if v, err := args.Attr("served_model_name"); err == nil {
		e.served(oneOrMore(v), sourceLive)
	}
	if e.LogStats == nil {
		if v, err := args.Attr("disable_log_stats"); err == nil {
			if off, err := v.Bool(); err == nil {
				on := !off
				e.LogStats = &on
				e.Sources["log_stats"] = sourceLive
			}
		}
	}
	if v, err := args.Attr("kv_transfer_config"); err == nil && v.IsNone() {
		e.kvTransfer(v)
	}
	markServers(g, text(args, "ssl_certfile") != "" || text(args, "ssl_keyfile") != "", text(args, "uds"))
}

// commandLine takes from the arguments what no live process said.
func (e *Engine) commandLine(f flags, g []*proc) {
	if m, ok := f.model(); ok {
		e.set("model", sourceCommand, &e.Model, m)
	}
	e.served(f.values("--served-model-name"), sourceCommand)
	if e.LogStats == nil && f.has("--disable-log-stats") {
		off := false
		e.LogStats = &off
		e.Sources["log_stats"] = sourceCommand
	}
	_, key := f.value("--ssl-keyfile")
	_, cert := f.value("--ssl-certfile")
	uds, _ := f.value("--uds")
	markServers(g, key || cert, uds)
}

// noReceipts says what is lost when deliveries to a front end are not seen.
const noReceipts = "time to first token and end-to-end time end when the core sends, not when the front end receives"

// vllmProblems says what of vLLM cannot be traced.
func vllmProblems(e *Engine, g []*proc) {
	cores := withRole(g, RoleCore)
	servers := withRole(g, RoleAPIServer)
	if e.Generation == "V0" {
		e.problem("vLLM's V0 engine pickles its messages, which are not read: no engine spans and no metrics, only entry spans")
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
	}
	if e.LogStats != nil && !*e.LogStats {
		e.problem("statistics are off (--disable-log-stats, the default of the class LLM): the engine sends no request events and no scheduler statistics")
	}
	if e.FactSource == "" && e.Generation == "V1" {
		e.problem("the layout of the messages could not be read from a live process")
	}
}

// vllmTokenizer returns the directory or hub name of the tokenizer.
func vllmTokenizer(p *proc) (name, revision string) {
	if cfg, _, ok := p.vllmConfig(); ok {
		if m, err := cfg.Attr("model_config"); err == nil {
			if name = text(m, "tokenizer"); name != "" {
				return name, firstOf(text(m, "tokenizer_revision"), text(m, "revision"))
			}
		}
	}
	if args, ok := p.arguments(); ok {
		return firstOf(text(args, "tokenizer"), text(args, "model")), firstOf(text(args, "tokenizer_revision"), text(args, "revision"))
	}
	f := flags{p.cmdline}
	m, _ := f.model()
	t, _ := f.value("--tokenizer")
	r, _ := f.value("--revision")
	tr, _ := f.value("--tokenizer-revision")
	return firstOf(t, m), firstOf(tr, r)
}

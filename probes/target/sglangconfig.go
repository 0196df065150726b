package target

import (
	"io"
	"slices"
	"strings"

	"inferspan/probes/python"
)

// sglangArgs are the ServerArgs of a process, nil if they cannot be read.
type sglangArgs struct{ args python.Value }

// sglangArgs finds the arguments in the variables of the function that shows the role
// or of another one of SGLang, or in its server, if the process is a program that has one.
func (p *proc) sglangArgs() *sglangArgs {
	if p.interp == nil {
		return nil
	}
	for _, f := range append([]python.Frame{p.frame}, p.frames...) {
		if v, err := f.Local("server_args"); err == nil && v.TypeName() == "ServerArgs" {
			return &sglangArgs{v}
		}
	}
	// 0.5.23 publishes them; before they were kept by the server and each scheduler.
	for _, at := range [][]string{
		{"sglang.srt.server_args", "_global_server_args"},
		{"sglang.srt.entrypoints.http_server", "_global_state", "tokenizer_manager", "server_args"},
	} {
		if v, err := p.interp.Path(at[0], at[1:]...); err == nil && v.TypeName() == "ServerArgs" {
			return &sglangArgs{v}
		}
	}
	main, err := p.interp.Module("__main__")
	if err != nil {
		return nil
	}
	vars, err := main.Vars(maxFinalizers)
	if err != nil {
		return nil
	}
	for _, it := range vars {
		if it.Value.TypeName() != "Engine" {
			continue
		}
		if v, err := it.Value.Attr("server_args"); err == nil && v.TypeName() == "ServerArgs" {
			return &sglangArgs{v}
		}
	}
	return nil
}

// maxOverrides bounds the steps by which arguments came to their values: 36 in 0.5.23.
const maxOverrides = 4096

// get returns the value of an argument, resolved as SGLang does: the last of the values
// that its start-up chose, else what was given.
func (a *sglangArgs) get(name string) (python.Value, bool) {
	if a == nil {
		return python.Value{}, false
	}
	if v, err := a.args.Attr("_resolved_overrides"); err == nil && !v.IsNone() {
		steps, err := v.List(maxOverrides)
		if err != nil {
			return python.Value{}, false
		}
		for _, s := range slices.Backward(steps) {
			chosen, err := s.Index(1)
			if err != nil {
				return python.Value{}, false
			}
			v, err := chosen.Key(name)
			if err == nil {
				return v, true
			}
			if !isNotFound(err) {
				return python.Value{}, false
			}
		}
	}
	if raw, err := a.args.Attr("_raw_input"); err == nil && !raw.IsNone() {
		if v, err := raw.Key(name); err == nil {
			return v, true
		}
	}
	v, err := a.args.Attr(name)
	return v, err == nil
}

// text returns an argument that is a str or an enum of them; ok is false for None and
// where it cannot be read.
func (a *sglangArgs) text(name string) (string, bool) {
	v, ok := a.get(name)
	if !ok || v.IsNone() {
		return "", false
	}
	if s, err := v.Str(); err == nil {
		return s, true
	}
	if _, member, err := v.Enum(); err == nil {
		if s, err := member.Str(); err == nil {
			return s, true
		}
	}
	return "", false
}

func (a *sglangArgs) number(name string) (int64, bool) {
	v, ok := a.get(name)
	if !ok {
		return 0, false
	}
	n, err := v.Int()
	return n, err == nil
}

// sglangSettings are the arguments that decoding needs, by their names.
var sglangSettings = []string{
	"attn_dp_size", "chunked_prefill_size", "disaggregation_mode", "dp_size", "enable_dp_attention", "enable_metrics", "enable_trace",
	"incremental_streaming_output", "max_running_requests", "max_total_tokens", "page_size", "pp_size",
	"skip_tokenizer_init", "speculative_algorithm", "stream_interval", "stream_response_default_include_usage",
	"tokenizer_worker_num", "tp_size",
}

// sglangConfigure fills in what the engine was configured with: from the arguments of
// a live process, of which all have the same, then from the command line.
func sglangConfigure(s *scan, e *Engine, g []*proc) {
	for _, p := range live(g) {
		if a := p.sglangArgs(); a != nil && e.sglangLive(a, g) {
			break
		}
	}
	e.sglangStamps(g)
	e.HostID = s.machineID(g[0].PID)
	for _, p := range g {
		if p.Role == RoleAPIServer || p.Role == RoleLauncher {
			e.sglangCommand(flags{p.cmdline}, g)
		}
	}
}

// maxMachineID bounds /etc/machine-id, which has 33 bytes.
const maxMachineID = 256

// machineID reads how SGLang names the host: by /etc/machine-id, as the processes see it.
// Where there is no such file it uses an address of the network hardware, which is left
// unknown.
func (s *scan) machineID(pid int) string {
	f, err := s.fs.OpenInRoot(pid, "/etc/machine-id")
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMachineID))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sglangLive takes what the arguments say; false if they cannot be read.
func (e *Engine) sglangLive(a *sglangArgs, g []*proc) bool {
	model, ok := a.text("model_path")
	if !ok {
		return false
	}
	e.set("model", sourceLive, &e.Model, model)
	if name, ok := a.text("served_model_name"); ok {
		e.served([]string{name}, sourceLive)
	}
	if mode, ok := a.text("disaggregation_mode"); ok {
		e.set("pd_role", sourceLive, &e.PDRole, sglangPDRole(mode))
	}
	e.Settings = make(map[string]any)
	for _, name := range sglangSettings {
		v, ok := a.get(name)
		if !ok || v.IsNone() {
			continue
		}
		if p, err := v.Plain(1); err == nil {
			switch p.(type) {
			case bool, string, int64, float64:
				e.Settings[name] = p
			}
		} else if s, ok := a.text(name); ok {
			e.Settings[name] = s
		}
	}
	e.Sources["settings"] = sourceLive
	_, key := a.text("ssl_keyfile")
	_, cert := a.text("ssl_certfile")
	markServers(g, key || cert, "")
	return true
}

// sglangCommand takes from the arguments what no live process said.
func (e *Engine) sglangCommand(f flags, g []*proc) {
	model, ok := f.value("--model-path", "--model")
	if !ok {
		model, ok = f.model()
	}
	if ok {
		e.set("model", sourceCommand, &e.Model, model)
	}
	e.served(f.values("--served-model-name"), sourceCommand)
	mode, ok := f.value("--disaggregation-mode")
	if !ok {
		mode = "null"
	}
	if e.PDRole == "" && e.Sources["model"] == sourceCommand {
		e.set("pd_role", sourceCommand, &e.PDRole, sglangPDRole(mode))
	}
	_, key := f.value("--ssl-keyfile")
	_, cert := f.value("--ssl-certfile")
	markServers(g, key || cert, "")
}

func sglangPDRole(mode string) string {
	switch mode {
	case "null":
		return "none"
	case "prefill":
		return "producer"
	case "decode":
		return "consumer"
	}
	return ""
}

func sglangTokenizer(p *proc) (name, revision string) {
	if a := p.sglangArgs(); a != nil {
		tokenizer, _ := a.text("tokenizer_path")
		model, _ := a.text("model_path")
		rev, _ := a.text("revision")
		return firstOf(tokenizer, model), rev
	}
	f := flags{p.cmdline}
	t, _ := f.value("--tokenizer-path")
	m, ok := f.value("--model-path", "--model")
	if !ok {
		m, _ = f.model()
	}
	rev, _ := f.value("--revision")
	return firstOf(t, m), rev
}

// sglangProblems says what of SGLang cannot be traced.
func sglangProblems(e *Engine, g []*proc) {
	for _, p := range g {
		switch p.Role {
		case RoleCore, RoleDetokenizer, RoleController:
			if p.ZMQ == nil {
				e.problem("%s %d maps no libzmq (it is starting, or libzmq is linked in): its messages cannot be seen", p.eng.roleName(p.Role), p.PID)
			}
		case RoleAPIServer:
			if p.ZMQ == nil {
				e.problem("API server %d maps no libzmq: the requests that it sends cannot be seen", p.PID)
			}
			if p.kind == sglGRPC {
				e.problem("API server %d serves gRPC: no entry spans", p.PID)
			}
		}
	}
	if n, ok := e.Setting("tokenizer_worker_num"); ok && n > 1 {
		if up := int64(len(withRole(g, RoleAPIServer))); up < n {
			e.problem("%d of %d tokenizer workers run: the others start yet, and are not seen unless they do before probes are attached", up, n)
		}
	}
	if e.Settings["skip_tokenizer_init"] == true {
		e.problem("the engine works on token ids (--skip-tokenizer-init): there is no detokenizing to see")
	}
}

// SGLangArgument returns an argument of a live ServerArgs, as the engine resolved it; ok
// is false if it cannot be read.
func SGLangArgument(args python.Value, name string) (v python.Value, ok bool) {
	return (&sglangArgs{args}).get(name)
}

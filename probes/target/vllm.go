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

// Classes whose layout decoders need, by module. A class that a version lacks is
// left out.
var structs = []struct{ module, class string }{
	{"vllm.v1.engine", "EngineCoreRequest"},
	{"vllm.v1.engine", "EngineCoreOutput"},
	{"vllm.v1.engine", "EngineCoreOutputs"},
	{"vllm.v1.engine", "EngineCoreEvent"},
	{"vllm.v1.engine", "UtilityOutput"},
	{"vllm.sampling_params", "SamplingParams"},
	{"vllm.pooling_params", "PoolingParams"},
}

// Classes whose messages leave out fields that have their default. (The others are
// arrays, which carry all fields.)
var omitDefaults = []string{"SamplingParams"}

// Classes without which messages cannot be read.
var needed = []string{"EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs"}

var enums = []string{"EngineCoreEventType", "FinishReason", "EngineCoreRequestType"}

// Bounds: EngineCoreRequest has 22 fields, SamplingParams 43, in 0.32.
const (
	maxFields  = 512
	maxMembers = 256
	maxDefault = 64 // objects in one default value
)

// layouts reads the messages' fields, enums and defaults from the first process
// whose interpreter gives all of them.
func (s *scan) layouts(e *Engine, g []*proc) {
	if e.Generation == "V0" {
		return
	}
	for _, p := range live(g) {
		st, def, err := readStructs(p.interp)
		if err != nil {
			if !isGone(err) && !errors.Is(err, python.ErrNotFound) {
				e.problem("process %d: reading the layout of messages: %v", p.PID, err)
			}
			continue
		}
		en, err := readEnums(p.interp)
		if err != nil {
			e.problem("process %d: reading the enums in messages: %v", p.PID, err)
		}
		e.Structs, e.Defaults, e.Enums, e.FactSource = st, def, en, sourceLive
		return
	}
}

func readStructs(in *python.Interp) (map[string][]string, map[string]map[string]any, error) {
	fields := make(map[string][]string)
	defaults := make(map[string]map[string]any)
	modules := make(map[string]python.Value)
	for _, c := range structs {
		var class python.Value
		var err error
		if _, ok := modules[c.module]; !ok {
			modules[c.module], err = in.Module(c.module)
		}
		if err == nil {
			class, err = modules[c.module].Attr(c.class)
		}
		if err != nil {
			if errors.Is(err, python.ErrNotFound) && !slices.Contains(needed, c.class) {
				continue
			}
			return nil, nil, err
		}
		names, err := readStrings(class, "__struct_fields__")
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.class, err)
		}
		fields[c.class] = names
		if !slices.Contains(omitDefaults, c.class) {
			continue
		}
		def, err := readDefaults(class, names)
		if err != nil {
			return nil, nil, fmt.Errorf("defaults of %s: %w", c.class, err)
		}
		defaults[c.class] = def
	}
	return fields, defaults, nil
}

func readStrings(v python.Value, attr string) ([]string, error) {
	t, err := v.Attr(attr)
	if err != nil {
		return nil, err
	}
	elems, err := t.List(maxFields)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(elems))
	for i, e := range elems {
		if out[i], err = e.Str(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readDefaults reads the plain defaults of a msgspec.Struct: __struct_defaults__
// has those of the last fields. A default that is made anew for each instance, or
// that has no plain value, is left out.
func readDefaults(class python.Value, fields []string) (map[string]any, error) {
	t, err := class.Attr("__struct_defaults__")
	if err != nil {
		return nil, err
	}
	elems, err := t.List(maxFields)
	if err != nil {
		return nil, err
	}
	if len(elems) > len(fields) {
		return nil, fmt.Errorf("%d defaults for %d fields: %w", len(elems), len(fields), python.ErrCorrupt)
	}
	out := make(map[string]any)
	for i, e := range elems {
		v, err := e.Plain(maxDefault)
		switch {
		case err == nil:
			out[fields[len(fields)-len(elems)+i]] = v
		case errors.Is(err, python.ErrOpaque), errors.Is(err, python.ErrLimit):
		default:
			return nil, err
		}
	}
	return out, nil
}

// readEnums reads the members of enums. A value of one byte, as the types of
// requests have, is kept as that byte's number.
func readEnums(in *python.Interp) (map[string]map[int64]string, error) {
	out := make(map[string]map[int64]string)
	module, err := in.Module("vllm.v1.engine")
	if err != nil {
		return nil, err
	}
	for _, name := range enums {
		class, err := module.Attr(name)
		if errors.Is(err, python.ErrNotFound) {
			continue
		}
		if err != nil {
			return out, err
		}
		items, err := class.EnumMembers(maxMembers)
		if err != nil {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		members := make(map[int64]string, len(items))
		for _, it := range items {
			key, err := it.Key.Str()
			if err != nil {
				return out, fmt.Errorf("%s: %w", name, err)
			}
			if it.Value.Kind() == python.Bytes {
				b, err := it.Value.Bytes()
				if err != nil {
					return out, fmt.Errorf("%s: %w", name, err)
				}
				if len(b) == 1 {
					members[int64(b[0])] = key
				}
				continue
			}
			n, err := it.Value.Int()
			if err != nil {
				return out, fmt.Errorf("%s.%s: %w", name, key, err)
			}
			members[n] = key
		}
		out[name] = members
	}
	return out, nil
}

// config fills in what the engine was configured with: from the configuration
// object of a live core, then from the parsed arguments of a live front end, then
// from the command lines.
func (s *scan) config(e *Engine, g []*proc) {
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

// set gives a fact a value unless it has one.
func (e *Engine) set(name, source string, to *string, val string) {
	if *to == "" && val != "" {
		*to = val
		e.Sources[name] = source
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

func pdRole(kvRole string) string {
	switch kvRole {
	case "kv_producer":
		return "producer"
	case "kv_consumer":
		return "consumer"
	}
	return ""
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

func (e *Engine) serverArgs(args python.Value, g []*proc) {
	text := func(name string) string {
		v, err := args.Attr(name)
		if err != nil {
			return ""
		}
		s, err := v.Str()
		if err != nil {
			return ""
		}
		return s
	}
	e.set("model", sourceLive, &e.Model, text("model"))
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
	markServers(g, text("ssl_certfile") != "" || text("ssl_keyfile") != "", text("uds"))
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

// maxDist bounds the entries of a site-packages directory that are looked at.
const maxDist = 20000

// distVersion returns the version in the name of the installed package
// (vllm-0.32.0+cpu.dist-info) beside the vllm package of a process: the one that
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
		v, ok := strings.CutPrefix(n, "vllm-")
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

// packageDir returns the directory that holds the vllm package, as the process
// sees it.
func (s *scan) packageDir(p *proc) string {
	if p.interp != nil {
		if v, err := p.interp.Path("vllm", "__file__"); err == nil {
			if f, err := v.Str(); err == nil && path.IsAbs(f) {
				return path.Dir(path.Dir(f))
			}
		}
	}
	maps, err := s.fs.Maps(p.PID)
	if err != nil {
		return ""
	}
	for _, m := range maps {
		if d := path.Dir(m.Path); strings.HasSuffix(m.Path, ".so") && path.Base(d) == "vllm" {
			return path.Dir(d)
		}
	}
	return ""
}

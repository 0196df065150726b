package target

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// sglang is SGLang 0.5.
var sglang = engineKind{
	name: "sglang", title: "SGLang", modules: []string{"sglang", "sglang_router"}, dist: "sglang",
	versions: []string{"sglang.version", "sglang._version"},
	roles: map[Role]string{
		RoleCore:   "scheduler",
		RoleRouter: "router",
	},
	markers: []markerOf{
		{"run_scheduler_process", "sglang/srt/managers/scheduler.py", sglScheduler, RoleCore, inTree},
		{"run_detokenizer_process", "sglang/srt/managers/detokenizer_manager.py", sglDetokenizer, RoleDetokenizer, inTree},
		{"run_multi_detokenizer_router_process", "sglang/srt/managers/multi_tokenizer_mixin.py", sglRouter, RoleRouter, inTree},
		{"run_data_parallel_controller_process", "sglang/srt/managers/data_parallel_controller.py", sglController, RoleController, inTree},
		{"launch_server", "sglang/srt/entrypoints/http_server.py", sglServer, RoleAPIServer, ownTree},
		{"serve_grpc", "sglang/srt/entrypoints/grpc_server.py", sglGRPC, RoleAPIServer, ownTree},
		{"run_server", "sglang/launch_server.py", sglServer, RoleAPIServer, ownTree},
		{mainModule, "sglang/launch_server.py", sglServer, RoleAPIServer, ownTree},
		{"main", "sglang_router/launch_server.py", sglGateway, RoleGateway, manyTrees},
		{"launch_router", "sglang_router/launch_router.py", sglGateway, RoleGateway, manyTrees},
		{"main", "sglang_router/launch_router.py", sglGateway, RoleGateway, manyTrees},
		{mainModule, "sglang_router/launch_router.py", sglGateway, RoleGateway, manyTrees},
	},
	byTitle: sglangByTitle, byCommand: sglangByCommand, byExe: sglangByExe,
	shows: func(maps []procfs.Mapping, cmdline []string) bool {
		_, title := sglangByTitle(cmdline)
		_, command := sglangByCommand(cmdline)
		return title || command || packageMapped(maps, "sgl_kernel") != ""
	},
	refine:    sglangRefine,
	byMemory:  sglangByMemory,
	addresses: sglangAddresses,
	messages: messageClasses{structs: []structClass{
		// Before they were structs, messages were dataclasses, which are pickled with the
		// names of their fields.
		{sglangMessages, "TokenizedGenerateReqInput"},
		{sglangMessages, "BatchTokenizedGenerateReqInput"},
		{sglangMessages, "TokenizedEmbeddingReqInput"},
		{sglangMessages, "BatchTokenizedEmbeddingReqInput"},
		{sglangMessages, "BatchTokenIDOutput"},
		{sglangMessages, "BatchStrOutput"},
		{sglangMessages, "BatchEmbeddingOutput"},
		{sglangMessages, "BeamSearchOutput"},
		{sglangMessages, "AbortReq"},
		{sglangMessages, "PickleWrapper"},
		{"sglang.srt.sampling.sampling_params", "SamplingParams"},
	}},
	config:    sglangConfigure,
	tokenizer: sglangTokenizer,
	problems:  sglangProblems,
	rules:     sglangCapabilities,
	noEngine:  "sglang is imported, but no server, scheduler or detokenizer of its runs here",
}

const sglangMessages = "sglang.srt.managers.io_struct"

// Markers of SGLang.
const (
	sglScheduler marker = iota + 1
	sglDetokenizer
	sglRouter     // of detokenizers
	sglController // of data parallel schedulers
	sglServer
	sglGRPC
	sglWorker // one of several tokenizer workers, which serve HTTP
	sglGateway
)

// sglangTitle is what setproctitle leaves.
var (
	sglangTitle = regexp.MustCompile(`^sglang::(scheduler|detokenizer_router|detokenizer|data_parallel_controller|tokenizer_worker|server|router)(?:[_:].*)?$`)
	sglangRank  = regexp.MustCompile(`_(ATTN_CP|MOE_DP|DP|PP|TP|EP)(\d+)`)
)

func sglangByTitle(cmdline []string) (roleOf, bool) {
	if len(cmdline) == 0 {
		return roleOf{}, false
	}
	// A title that is shorter than the command line it replaces ends in blanks or NULs.
	m := sglangTitle.FindStringSubmatch(strings.TrimRight(cmdline[0], " \x00"))
	if m == nil {
		return roleOf{}, false
	}
	switch m[1] {
	case "scheduler":
		r := roleOf{role: RoleCore, kind: sglScheduler}
		for _, rank := range sglangRank.FindAllStringSubmatch(m[0], -1) {
			n, err := strconv.Atoi(rank[2])
			if err != nil {
				continue
			}
			switch rank[1] {
			case "TP":
				r.ranks.TP = &n
			case "PP":
				r.ranks.PP = &n
			case "DP":
				r.ranks.DP, r.index = &n, n
			}
		}
		return r, true
	case "detokenizer":
		return roleOf{role: RoleDetokenizer, kind: sglDetokenizer}, true
	case "detokenizer_router":
		return roleOf{role: RoleRouter, kind: sglRouter}, true
	case "data_parallel_controller":
		return roleOf{role: RoleController, kind: sglController}, true
	case "server": // the router's launch_server starts several, and calls itself router
		return roleOf{role: RoleAPIServer, kind: sglServer, tree: ownTree}, true
	case "router":
		return roleOf{role: RoleGateway, kind: sglGateway, tree: manyTrees}, true
	}
	return roleOf{role: RoleAPIServer, kind: sglWorker}, true
}

// sglangByCommand guesses from the arguments that a process was started with.
func sglangByCommand(cmdline []string) (roleOf, bool) {
	for i, a := range cmdline {
		switch {
		case a == "sglang.launch_server", i > 0 && a == "serve" && path.Base(cmdline[i-1]) == "sglang":
			return sglangServer(flags{cmdline}.value("--tokenizer-worker-num")), true
		case a == "sglang_router.launch_router", a == "sglang_router.launch_server":
			return roleOf{role: RoleGateway, kind: sglGateway, tree: manyTrees}, true
		}
	}
	return roleOf{}, false
}

// sglangServer is the role of the main process, given the number of tokenizer workers:
// with several these serve HTTP, and it passes their messages on.
func sglangServer(workers string, _ bool) roleOf {
	if n, err := strconv.Atoi(workers); err == nil && n > 1 {
		return roleOf{role: RoleLauncher, kind: sglServer, tree: ownTree}
	}
	return roleOf{role: RoleAPIServer, kind: sglServer, tree: ownTree}
}

// sglangByExe knows the gateway where it is a program of its own.
func sglangByExe(exe string) (roleOf, bool) {
	switch path.Base(exe) {
	case "sglang-router", "sgl-model-gateway", "smg":
		return roleOf{role: RoleGateway, kind: sglGateway, tree: manyTrees}, true
	}
	return roleOf{}, false
}

// sglangRefine reads the ranks of a scheduler from the variables of the function that
// shows its role, as SGLang's own spans have them; the title, which shows only those
// that there are several of, is the fallback. It tells, too, the server from the
// process that starts several.
func sglangRefine(p *proc) {
	switch p.kind {
	case sglScheduler:
		if t, ok := sglangByTitle(p.cmdline); ok && t.role == p.role {
			p.index, p.ranks = t.index, t.ranks
		}
		for name, to := range map[string]**int{"tp_rank": &p.ranks.TP, "pp_rank": &p.ranks.PP, "dp_rank": &p.ranks.DP} {
			v, err := p.frame.Local(name)
			if err != nil {
				continue
			}
			if v.IsNone() {
				*to = nil
			} else if n, err := v.Int(); err == nil && n >= 0 && n < 1<<20 {
				rank := int(n)
				*to = &rank
			}
		}
		if p.ranks.DP != nil {
			p.index = *p.ranks.DP
		}
	case sglServer:
		if n, ok := p.sglangArgs().number("tokenizer_worker_num"); ok && n > 1 {
			p.role = RoleLauncher
		}
	}
}

// sglangByMemory knows a tokenizer worker without a title: a server of uvicorn with
// several, which has made SGLang's server.
func sglangByMemory(p *proc) {
	if !spawned(p.frames) || !slices.ContainsFunc(p.frames, func(f python.Frame) bool { return strings.HasSuffix(f.File, "/uvicorn/_subprocess.py") }) {
		return
	}
	if _, err := p.interp.Module("sglang.srt.entrypoints.http_server"); err == nil {
		p.roleOf = roleOf{role: RoleAPIServer, kind: sglWorker}
	}
}

// maxArgs bounds the arguments of a gateway: it may have hundreds of workers.
const maxArgs = 1 << 12

// sglangAddresses reads the addresses of workers in the arguments of a gateway: as given,
// and as its function has them, since a program may have put them together.
func sglangAddresses(p *proc) []string {
	var out []string
	if argv, err := p.interp.Path("sys", "orig_argv"); err == nil {
		out = append(out, texts(argv)...)
	}
	for _, f := range append([]python.Frame{p.frame}, p.frames...) {
		args, err := f.Local("router_args")
		if err != nil || args.TypeName() != "RouterArgs" {
			continue
		}
		for _, name := range []string{"worker_urls", "prefill_urls", "decode_urls"} {
			if v, err := args.Attr(name); err == nil {
				out = append(out, texts(v)...)
			}
		}
	}
	return out
}

// texts returns the strs of a list, also of pairs whose first is one.
func texts(list python.Value) (out []string) {
	elems, err := list.List(maxArgs)
	if err != nil {
		return nil
	}
	for _, e := range elems {
		if first, err := e.Index(0); err == nil {
			e = first
		}
		if s, err := e.Str(); err == nil {
			out = append(out, s)
		}
	}
	return out
}

// Package target finds engine processes on the host and gathers the facts about
// them that probes and decoders need.
package target

import "inferspan/correlate/signal"

// Role is what a process does in its engine.
type Role string

// Roles.
const (
	RoleAPIServer   Role = "api_server"  // serves HTTP, talks to the cores
	RoleCore        Role = "engine_core" // scheduler
	RoleWorker      Role = "worker"      // model execution
	RoleLauncher    Role = "launcher"    // starts API servers, serves no requests itself
	RoleCoordinator Role = "dp_coordinator"
	RoleController  Role = "dp_controller" // hands requests out to the cores
	RoleDetokenizer Role = "detokenizer"
	RoleRouter      Role = "router"  // passes messages on between processes of the engine
	RoleGateway     Role = "gateway" // passes HTTP requests on to engines, of which it may know several
	RoleOffline     Role = "offline" // a Python program that uses the engine as a library
	RoleOther       Role = "other"
)

// Engine is one engine instance with its processes. It is stored in recordings
// as JSON: nothing in decoding may need more than this.
type Engine struct {
	ID          signal.EngineID `json:"id"`
	Kind        string          `json:"kind"` // "vllm", "sglang"
	Version     string          `json:"version,omitempty"`
	Model       string          `json:"model,omitempty"`        // path or hub name
	ServedNames []string        `json:"served_names,omitempty"` // first one is reported
	KVLoads     *bool           `json:"kv_loads,omitempty"`     // the scheduler says which requests wait for its KV connector; nil without one
	PDRole      string          `json:"pd_role,omitempty"`      // "none", "producer", "consumer"; "" = not known
	Processes   []Process       `json:"processes"`
	// Structs has the field order of the engine's message classes, read from the
	// live process: class name -> field names.
	Structs map[string][]string `json:"structs,omitempty"`
	// Enums has the members of enums in messages: class name -> value -> member name.
	Enums map[string]map[int64]string `json:"enums,omitempty"`
	// Defaults has defaults of message fields that the wire leaves out: class -> field -> value.
	Defaults map[string]map[string]any `json:"defaults,omitempty"`
	// Generation is the engine's architecture: "V1", "V0"; "" if not known.
	Generation string `json:"generation,omitempty"`
	// Settings are what the engine was configured with, by its own names, as far as
	// decoding needs it: bool, string, float64, or a whole number (see Engine.Setting).
	Settings map[string]any `json:"settings,omitempty"`
	// HostID is how the engine names its host in traces, "" if not known.
	HostID string `json:"host_id,omitempty"`
	// LogStats says whether the engine core sends request events and scheduler
	// statistics (off: --disable-log-stats); nil if not known.
	LogStats *bool `json:"log_stats,omitempty"`
	// Stamps has the times that processes of a role keep of each request, and of each batch,
	// by the engine's names. A role that keeps none has an empty list; one of which this is not known, or
	// not needed, is left out.
	Stamps map[Role][]string `json:"stamps,omitempty"`
	// Publishes says whether schedulers publish how full their KV cache is; nil if not known.
	Publishes *bool `json:"publishes,omitempty"`
	// Sources says where facts come from, by the fact's JSON name: "live" (the
	// interpreter's memory), "command line", "dist-info" (the installed package).
	Sources map[string]string `json:"sources,omitempty"`
	// FactSource says where Structs come from: "live", "table" (by version), "".
	FactSource string `json:"fact_source,omitempty"`
	// Tokenizer is the path of tokenizer.json seen from the host, "" if not found.
	Tokenizer string   `json:"tokenizer,omitempty"`
	Problems  []string `json:"problems,omitempty"` // what cannot be traced, and why
}

// Setting returns a setting that is a whole number. It may have been through JSON.
func (e *Engine) Setting(name string) (int64, bool) {
	switch v := e.Settings[name].(type) {
	case int64:
		return v, true
	case float64:
		if n := int64(v); float64(n) == v {
			return n, true
		}
	}
	return 0, false
}

// Process is one process of an engine.
type Process struct {
	PID         int      `json:"pid"`    // in the agent's PID namespace
	NSPID       int      `json:"ns_pid"` // in its own
	PPID        int      `json:"ppid"`
	Start       uint64   `json:"start"` // clock ticks after boot: tells a reused PID apart
	Role        Role     `json:"role"`
	InProcess   bool     `json:"in_process,omitempty"` // the core is part of a program that uses the engine as a library
	Index       int      `json:"index"`                // API server or core index, worker rank; 0 if single
	Ranks       Ranks    `json:"ranks,omitzero"`       // of cores that have them
	Comm        string   `json:"comm"`
	Cmdline     []string `json:"cmdline,omitempty"` // secrets blanked
	Python      Python   `json:"python"`
	ContainerID string   `json:"container_id,omitempty"`
	Ports       []int    `json:"ports,omitempty"` // TCP ports it listens on
	ZMQ         *Library `json:"zmq,omitempty"`   // the libzmq it maps
	TLS         bool     `json:"tls,omitempty"`   // serves HTTP over TLS
	UDS         string   `json:"uds,omitempty"`   // Unix socket on which it serves HTTP instead of a port
	Seccomp     bool     `json:"seccomp,omitempty"`
	ServiceName string   `json:"service_name,omitempty"` // OTEL_SERVICE_NAME of the process
	ResourceEnv string   `json:"resource_env,omitempty"` // OTEL_RESOURCE_ATTRIBUTES of the process
}

// CoreOf returns the PID of the engine core that a worker belongs to, 0 if that is not
// known: a core starts its workers, mostly itself.
func (e *Engine) CoreOf(worker *Process) int {
	only, cores := 0, 0
	for i := range e.Processes {
		if p := &e.Processes[i]; p.Role == RoleCore {
			if p.PID == worker.PPID {
				return p.PID
			}
			only, cores = p.PID, cores+1
		}
	}
	if cores != 1 {
		return 0
	}
	return only
}

// Ranks are the places of a process among those that share a model, nil where it has none.
type Ranks struct {
	TP *int `json:"tp,omitempty"` // tensor parallel
	PP *int `json:"pp,omitempty"` // pipeline parallel
	DP *int `json:"dp,omitempty"` // data parallel
}

// Python describes an interpreter.
type Python struct {
	Version  string `json:"version,omitempty"` // "3.12.1"
	Linkage  string `json:"linkage,omitempty"` // "shared" (libpython), "static"
	Stripped bool   `json:"stripped,omitempty"`
	Path     string `json:"path,omitempty"`    // file that holds the interpreter, as the process sees it
	Problem  string `json:"problem,omitempty"` // why the live interpreter cannot be read
}

// Library is a mapped file.
type Library struct {
	Path    string `json:"path"`     // as the process sees it
	MapFile string `json:"map_file"` // path to open it by, through /proc
	Dev     uint64 `json:"dev"`
	Ino     uint64 `json:"ino"`
}

package decode

import (
	"net/url"
	"slices"
	"strings"

	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

// announce turns target facts into the engine signal. Resource attributes follow
// OpenTelemetry where it has names; service.name is left to the exporter when
// the process does not say it.
func announce(e *target.Engine) *signal.Engine {
	s := &signal.Engine{ID: e.ID, Kind: e.Kind, Version: e.Version, Model: reportedModel(e), PDRole: e.PDRole}
	if n, ok := e.Setting("stream_interval"); ok {
		s.StreamInterval = signal.Some(n)
	}
	if n, ok := e.Setting("tokenizer_worker_num"); ok {
		s.FrontEnds = signal.Some(n)
	}
	s.Resource = kvs(
		"inferspan.engine.kind", e.Kind,
		"inferspan.engine.version", e.Version,
		"inferspan.engine.model", e.Model,
	)
	for i := range e.Processes {
		p := &e.Processes[i]
		res := kvs(
			"service.name", p.ServiceName,
			"container.id", p.ContainerID,
			"process.runtime.version", p.Python.Version,
			"inferspan.process.role", string(p.Role),
		)
		if p.Python.Version != "" {
			res = append(res, signal.KV{Key: "process.runtime.name", Value: "cpython"})
		}
		res = append(res, signal.KV{Key: "process.pid", Value: int64(p.PID)}, signal.KV{Key: "inferspan.process.index", Value: int64(p.Index)})
		for _, kv := range envAttributes(p.ResourceEnv) {
			if !slices.ContainsFunc(res, func(have signal.KV) bool { return have.Key == kv.Key }) {
				res = append(res, kv)
			}
		}
		var number signal.Opt[int64]
		core := 0
		if p.Role == target.RoleWorker {
			number, core = signal.Some(int64(p.Index)), e.CoreOf(p)
		}
		s.Process = append(s.Process, signal.Process{
			Rank: number, Core: uint32(core),
			PID: uint32(p.PID), Role: string(p.Role), Resource: res, NSPID: uint32(p.NSPID), HostID: e.HostID,
			TensorRank: rank(p.Ranks.TP), PipelineRank: rank(p.Ranks.PP), DataRank: rank(p.Ranks.DP),
		})
	}
	return s
}

func rank(n *int) signal.Opt[int64] {
	if n == nil {
		return signal.Opt[int64]{}
	}
	return signal.Some(int64(*n))
}

// reportedModel is the name that the engine reports: the first served name, else the model's.
func reportedModel(e *target.Engine) string {
	if len(e.ServedNames) > 0 {
		return e.ServedNames[0]
	}
	return e.Model
}

// kvs makes attributes of the pairs whose value is known.
func kvs(pairs ...string) []signal.KV {
	var out []signal.KV
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, signal.KV{Key: pairs[i], Value: pairs[i+1]})
		}
	}
	return out
}

// envAttributes reads the value of an OTEL_RESOURCE_ATTRIBUTES variable:
// key=value pairs, comma-separated, percent-encoded.
func envAttributes(env string) []signal.KV {
	var out []signal.KV
	for _, pair := range strings.Split(env, ",") {
		k, v, ok := strings.Cut(pair, "=")
		if k = strings.TrimSpace(k); ok && k != "" {
			if dec, err := url.PathUnescape(strings.TrimSpace(v)); err == nil {
				out = append(out, signal.KV{Key: k, Value: dec})
			}
		}
	}
	return out
}

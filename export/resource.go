package export

import (
	"fmt"
	"net/url"
	"sort"
	"strings"

	"inferspan/correlate/trace"
)

// Resource attribute names that exporters look at.
const (
	serviceName = "service.name"
	engineKind  = "inferspan.engine.kind"
	hardwareID  = "hw.id"
)

// Defaults is what the agent's own configuration adds to the resources of the
// processes it observes. It never replaces an observed fact.
type Defaults struct {
	// ServiceName names engines that have no OTEL_SERVICE_NAME of their own; ""
	// takes the kind of the engine instead ("vllm").
	ServiceName string
	// Attrs are added where the process has no attribute of that name.
	Attrs []trace.Attr
}

// DefaultsFromEnv reads the agent's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
// through getenv. A service name given on the command line goes before both.
func DefaultsFromEnv(name string, getenv func(string) string) (Defaults, error) {
	attrs, err := ParseResourceAttributes(getenv("OTEL_RESOURCE_ATTRIBUTES"))
	if err != nil {
		return Defaults{}, fmt.Errorf("reading OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	d := Defaults{ServiceName: name}
	if d.ServiceName == "" {
		d.ServiceName = getenv("OTEL_SERVICE_NAME")
	}
	for _, a := range attrs {
		switch {
		case a.Key != serviceName:
			d.Attrs = append(d.Attrs, a)
		case d.ServiceName == "":
			d.ServiceName = a.Value.(string)
		}
	}
	return d, nil
}

// ParseResourceAttributes reads the value of OTEL_RESOURCE_ATTRIBUTES: key=value
// pairs with commas between them, values percent-encoded. The result is sorted
// by key; the last of equal keys wins.
func ParseResourceAttributes(s string) ([]trace.Attr, error) {
	byKey := make(map[string]string)
	for pair := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		k = strings.TrimSpace(k)
		if !ok || k == "" {
			return nil, fmt.Errorf("%q is not key=value", pair)
		}
		v, err := url.PathUnescape(strings.TrimSpace(v))
		if err != nil {
			return nil, fmt.Errorf("value of %s: %w", k, err)
		}
		byKey[k] = v
	}
	attrs := make([]trace.Attr, 0, len(byKey))
	for k, v := range byKey {
		attrs = append(attrs, trace.Attr{Key: k, Value: v})
	}
	sort.Slice(attrs, func(i, j int) bool { return attrs[i].Key < attrs[j].Key })
	return attrs, nil
}

// Apply returns the attributes of r with the defaults added, sorted by key. r
// is not changed; nil stands for the agent itself.
func (d Defaults) Apply(r *trace.Resource) []trace.Attr {
	var attrs []trace.Attr
	if r != nil {
		attrs = append(attrs, r.Attrs...)
	}
	has := func(key string) bool {
		for i := range attrs {
			if attrs[i].Key == key {
				return true
			}
		}
		return false
	}
	for _, a := range d.Attrs {
		if !has(a.Key) {
			attrs = append(attrs, a)
		}
	}
	if !has(serviceName) {
		name := d.ServiceName
		for i := range attrs {
			if kind, ok := attrs[i].Value.(string); ok && name == "" && attrs[i].Key == engineKind {
				name = kind
			}
		}
		switch {
		case name != "":
		case r == nil, has(hardwareID): // a GPU is no service: it is ours that tells of it
			name = "inferspan"
		default:
			name = "unknown_service" // what the SDK specification asks for
		}
		attrs = append(attrs, trace.Attr{Key: serviceName, Value: name})
	}
	sort.SliceStable(attrs, func(i, j int) bool { return attrs[i].Key < attrs[j].Key })
	return attrs
}

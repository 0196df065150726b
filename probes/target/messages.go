package target

import (
	"errors"
	"fmt"
	"slices"

	"inferspan/probes/python"
)

// messageClasses are the classes whose layout decoders need.
type messageClasses struct {
	// structs are classes by module. One that a version lacks is left out, unless it is
	// needed: without those messages cannot be read.
	structs []structClass
	needed  []string
	// omitDefaults are classes whose messages leave out fields that have their default.
	omitDefaults []string
	enumModule   string
	enums        []string
}

type structClass struct{ module, class string }

// Bounds: EngineCoreRequest has 22 fields, SamplingParams 43, in vLLM 0.32;
// BatchTokenIDOutput 53 in SGLang 0.5.23.
const (
	maxFields  = 512
	maxMembers = 256
	maxDefault = 64 // objects in one default value
)

// layouts reads the messages' fields, enums and defaults from the first process
// whose interpreter gives all of them.
func (m *messageClasses) layouts(e *Engine, g []*proc) {
	for _, p := range live(g) {
		st, def, err := m.readStructs(p.interp)
		if err != nil {
			if !isGone(err) && !errors.Is(err, python.ErrNotFound) {
				e.problem("process %d: reading the layout of messages: %v", p.PID, err)
			}
			continue
		}
		en, err := m.readEnums(p.interp)
		if err != nil {
			e.problem("process %d: reading the enums in messages: %v", p.PID, err)
		}
		e.Structs, e.Defaults, e.Enums, e.FactSource = st, def, en, sourceLive
		return
	}
}

func (m *messageClasses) readStructs(in *python.Interp) (map[string][]string, map[string]map[string]any, error) {
	fields := make(map[string][]string)
	defaults := make(map[string]map[string]any)
	modules := make(map[string]python.Value)
	for _, c := range m.structs {
		var class python.Value
		var err error
		if _, ok := modules[c.module]; !ok {
			modules[c.module], err = in.Module(c.module)
		}
		if err == nil {
			class, err = modules[c.module].Attr(c.class)
		}
		if err != nil {
			if errors.Is(err, python.ErrNotFound) && !slices.Contains(m.needed, c.class) {
				continue
			}
			return nil, nil, err
		}
		names, err := readStrings(class, "__struct_fields__")
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.class, err)
		}
		fields[c.class] = names
		if !slices.Contains(m.omitDefaults, c.class) {
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
	return t.Strings(maxFields)
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
func (m *messageClasses) readEnums(in *python.Interp) (map[string]map[int64]string, error) {
	out := make(map[string]map[int64]string)
	if len(m.enums) == 0 {
		return nil, nil
	}
	module, err := in.Module(m.enumModule)
	if err != nil {
		return nil, err
	}
	for _, name := range m.enums {
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

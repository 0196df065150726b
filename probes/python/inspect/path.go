// Package inspect looks up and describes objects of a live Python process for people:
// what the command "inferspan inspect" prints.
package inspect

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"inferspan/probes/python"
)

// ErrPath says that a path is not well-formed.
var ErrPath = errors.New("malformed path")

// Path leads from a module to an object.
type Path struct {
	names []string // module and attributes: where the module's name ends is not known yet
	steps []step   // after the first [ ]
}

// step is an attribute, an index or a key.
type step struct {
	kind stepKind
	name string
	num  int64
}

type stepKind uint8

const (
	stepAttr stepKind = iota
	stepIndex
	stepKey
)

func (s step) String() string {
	switch s.kind {
	case stepIndex:
		return "[" + strconv.FormatInt(s.num, 10) + "]"
	case stepKey:
		return "['" + s.name + "']"
	}
	return "." + s.name
}

// maxPath bounds the text of a path, in bytes.
const maxPath = 4096

// ParsePath reads a path: a module's name, then attributes (".name"), indices or int
// keys ("[3]", "[-1]") and str keys ("['name']"). Errors wrap ErrPath.
func ParsePath(s string) (Path, error) {
	if len(s) > maxPath {
		return Path{}, fmt.Errorf("%w: longer than %d bytes", ErrPath, maxPath)
	}
	var p Path
	rest := s
	for first := true; rest != "" || first; first = false {
		at := len(s) - len(rest)
		var st step
		var err error
		switch {
		case strings.HasPrefix(rest, "["):
			if first {
				return Path{}, fmt.Errorf("%w %q: it begins with a module's name", ErrPath, s)
			}
			st, rest, err = bracket(rest)
		case first, strings.HasPrefix(rest, "."):
			st, rest, err = name(strings.TrimPrefix(rest, "."))
			if first && strings.HasPrefix(s, ".") {
				err = errors.New("it begins with a module's name")
			}
		default:
			err = errors.New(`want "." or "["`)
		}
		if err != nil {
			return Path{}, fmt.Errorf("%w %q, at %d: %w", ErrPath, s, at, err)
		}
		if st.kind == stepAttr && p.steps == nil {
			p.names = append(p.names, st.name)
		} else {
			p.steps = append(p.steps, st)
		}
	}
	return p, nil
}

func name(s string) (step, string, error) {
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z' || n > 0 && s[n] >= '0' && s[n] <= '9') {
		n++
	}
	if n == 0 {
		return step{}, "", errors.New("want a name")
	}
	return step{kind: stepAttr, name: s[:n]}, s[n:], nil
}

func bracket(s string) (step, string, error) {
	s = s[1:]
	if s != "" && (s[0] == '\'' || s[0] == '"') {
		end := strings.IndexByte(s[1:], s[0])
		if end < 0 || !strings.HasPrefix(s[end+2:], "]") {
			return step{}, "", errors.New("the key has no end")
		}
		return step{kind: stepKey, name: s[1 : end+1]}, s[end+3:], nil
	}
	text, rest, ok := strings.Cut(s, "]")
	n, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		return step{}, "", errors.New("want a number or a quoted key in [ ]")
	}
	return step{kind: stepIndex, num: n}, rest, nil
}

// String returns the path as ParsePath reads it.
func (p Path) String() string {
	s := strings.Join(p.names, ".")
	for _, st := range p.steps {
		s += st.String()
	}
	return s
}

// Resolve follows the path. The module is the one with the longest name that fits.
// Errors: as of Value.Attr, with the part of the path that was not found.
func (p Path) Resolve(in *python.Interp) (python.Value, error) {
	var v python.Value
	var err error
	n := len(p.names)
	for ; n > 0; n-- {
		v, err = in.Module(strings.Join(p.names[:n], "."))
		if err == nil {
			break
		}
		if !errors.Is(err, python.ErrNotFound) {
			return python.Value{}, err
		}
	}
	if n == 0 {
		return python.Value{}, fmt.Errorf("module %s: %w (the program did not import it)", p.names[0], python.ErrNotFound)
	}
	at := strings.Join(p.names[:n], ".")
	steps := make([]step, 0, len(p.names)-n+len(p.steps))
	for _, a := range p.names[n:] {
		steps = append(steps, step{kind: stepAttr, name: a})
	}
	for _, s := range append(steps, p.steps...) {
		next, err := follow(v, s)
		if err != nil {
			return python.Value{}, fmt.Errorf("%s: %w", at, err)
		}
		v = next
		at += s.String()
	}
	return v, nil
}

func follow(v python.Value, s step) (python.Value, error) {
	switch s.kind {
	case stepKey:
		return v.Key(s.name)
	case stepIndex:
		if v.Kind() == python.Dict {
			return v.IntKey(s.num)
		}
		i := s.num
		if i < 0 {
			n, err := v.Len()
			if err != nil {
				return python.Value{}, err
			}
			i += int64(n)
		}
		return v.Index(int(i))
	}
	return v.Attr(s.name)
}

package inspect

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// Options bound a description.
type Options struct {
	Depth int // levels below the object that are described with their parts
	Max   int // parts of one object; elements, entries, attributes
	Text  int // characters of a str, bytes of a bytes object
	Maps  []procfs.Mapping
}

// Node describes an object.
type Node struct {
	Type  string `json:"type"`           // the class's name
	Class string `json:"class"`          // the class with its module
	Addr  string `json:"addr,omitempty"` // "0x7f..."
	Value any    `json:"value,omitempty"`
	Is    string `json:"is,omitempty"` // what it is, where that is not a value: a function, a module
	Len   *int   `json:"len,omitempty"`
	Parts []Part `json:"parts,omitempty"`
	// More is how many parts are not there because of Options, -1 if not known.
	More  int    `json:"more,omitempty"`
	Error string `json:"error,omitempty"` // why it, or the rest of it, could not be read

	kind  python.Kind
	depth bool // parts were left out for Depth
}

// Part is an element, an entry or an attribute.
type Part struct {
	Index *int   `json:"index,omitempty"`
	Name  string `json:"name,omitempty"` // of an attribute
	Key   *Node  `json:"key,omitempty"`  // of an entry
	Node  Node   `json:"object"`
}

// maxNodes bounds a whole description.
const maxNodes = 20_000

type describer struct {
	Options
	left    int
	modules map[uint64]string // of classes
}

// Describe reads an object and what it refers to. What cannot be read has an Error in
// its place. The process runs on meanwhile: each object is read as of one moment, not
// all of them together.
func Describe(v python.Value, o Options) Node {
	d := &describer{Options: o, left: maxNodes, modules: make(map[uint64]string)}
	return d.node(v, o.Depth)
}

func (d *describer) node(v python.Value, depth int) Node {
	d.left--
	n := Node{Type: v.TypeName(), Addr: fmt.Sprintf("%#x", v.Addr()), kind: v.Kind()}
	n.Class = d.class(v)
	var err error
	switch n.kind {
	case python.None:
		n.Is = "None"
	case python.Bool:
		n.Value, err = v.Bool()
	case python.Int:
		err = d.number(&n, v)
	case python.Float:
		var f float64
		if f, err = v.Float(); math.IsNaN(f) || math.IsInf(f, 0) { // JSON has no such numbers
			n.Value = strconv.FormatFloat(f, 'g', -1, 64)
		} else {
			n.Value = f
		}
	case python.Str:
		err = d.text(&n, v)
	case python.Bytes:
		err = d.bytes(&n, v)
	case python.List, python.Tuple, python.Set, python.Deque:
		err = d.elements(&n, v, depth)
	case python.Dict:
		err = d.entries(&n, v, depth)
	default:
		err = d.object(&n, v, depth)
	}
	if err != nil {
		n.Value = nil
		n.Error = err.Error()
	}
	return n
}

// class returns the name of the object's class with its module.
func (d *describer) class(v python.Value) string {
	t, err := v.Type()
	if err != nil {
		return ""
	}
	name, err := t.Name()
	if err != nil {
		return ""
	}
	mod, ok := d.modules[t.Addr()]
	if !ok {
		mod, _ = t.ClassModule()
		d.modules[t.Addr()] = mod
	}
	if mod == "" || mod == "builtins" {
		return name
	}
	return mod + "." + name
}

func (d *describer) number(n *Node, v python.Value) error {
	i, err := v.Int()
	if errors.Is(err, python.ErrLimit) {
		n.Is = "int of more than 64 bits"
		return nil
	}
	n.Value = i
	if name, _, eerr := v.Enum(); err == nil && eerr == nil {
		n.Is = name
	}
	return err
}

func (d *describer) text(n *Node, v python.Value) error {
	size, err := v.Len()
	if err != nil {
		return err
	}
	n.Len = &size
	s, err := v.Str()
	if err != nil {
		return err
	}
	if utf8.RuneCountInString(s) > d.Text {
		s = string([]rune(s)[:d.Text])
		n.More = size - d.Text
	}
	n.Value = s
	if name, _, err := v.Enum(); err == nil {
		n.Is = name
	}
	return nil
}

func (d *describer) bytes(n *Node, v python.Value) error {
	b, err := v.Bytes()
	if err != nil {
		return err
	}
	size := len(b)
	n.Len = &size
	if size > d.Text {
		b = b[:d.Text]
		n.More = size - d.Text
	}
	n.Value = strconv.QuoteToASCII(string(b))
	return nil
}

// room returns how many parts of n may be shown, and notes how many are not.
func (d *describer) room(n *Node, size, depth int) int {
	show := min(size, d.Max, max(d.left, 0))
	if depth <= 0 {
		show, n.depth = 0, size > 0
	}
	n.More = size - show
	return show
}

// length notes how many parts a container has. With depth 0 that is all that is said of it.
func (d *describer) length(n *Node, v python.Value, depth int) error {
	size, err := v.Len()
	if err != nil {
		return err
	}
	n.Len = &size
	if depth <= 0 {
		d.room(n, size, depth)
	}
	return nil
}

func (d *describer) elements(n *Node, v python.Value, depth int) error {
	if err := d.length(n, v, depth); err != nil || depth <= 0 {
		return err
	}
	elems, err := v.List(maxRead)
	if err != nil {
		return err
	}
	*n.Len = len(elems) // it may have changed since
	for i, e := range elems[:d.room(n, len(elems), depth)] {
		n.Parts = append(n.Parts, Part{Index: &i, Node: d.node(e, depth-1)})
	}
	return nil
}

// maxRead bounds what is read of one container, also if less of it is shown.
const maxRead = 1 << 20

func (d *describer) entries(n *Node, v python.Value, depth int) error {
	if err := d.length(n, v, depth); err != nil || depth <= 0 {
		return err
	}
	items, err := v.Items(maxRead)
	if err != nil {
		return err
	}
	*n.Len = len(items) // it may have changed since
	for _, it := range items[:d.room(n, len(items), depth)] {
		key := d.node(it.Key, 2)
		n.Parts = append(n.Parts, Part{Key: &key, Node: d.node(it.Value, depth-1)})
	}
	return nil
}

// object describes what is not made of built-in values.
func (d *describer) object(n *Node, v python.Value, depth int) error {
	var items []python.Item
	var err error
	switch n.Type {
	case "module":
		n.Is = "module"
		if m, err := v.Attr("__name__"); err == nil {
			if s, err := m.Str(); err == nil {
				n.Is = "module " + s
			}
		}
	case "code", "function", "method":
		if is, err := code(v); !errors.Is(err, python.ErrType) {
			n.Is = is
			return err
		}
	}
	if n.kind != python.Type {
		if is, err := d.callable(v); err == nil {
			n.Is = is
			return nil
		}
	}
	if n.kind == python.Type {
		n.Is = d.typeOf(v)
	}
	if name, value, err := v.Enum(); err == nil {
		n.Is = name
		if p, err := value.Plain(100); err == nil {
			switch p.(type) {
			case bool, int64, string:
				n.Value = p
			}
		}
		return nil
	}
	if items, err = v.Attrs(maxRead); err != nil {
		return err
	}
	for _, it := range items[:d.room(n, len(items), depth)] {
		name, err := it.Key.Str()
		if err != nil {
			return err
		}
		n.Parts = append(n.Parts, Part{Name: name, Node: d.node(it.Value, depth-1)})
	}
	return nil
}

// typeOf returns the name of the class that v is, with its module.
func (d *describer) typeOf(v python.Value) string {
	name, err := v.Name()
	if err != nil {
		return ""
	}
	if s, err := v.ClassModule(); err == nil && s != "" && s != "builtins" {
		name = s + "." + name
	}
	return "class " + name
}

func code(v python.Value) (string, error) {
	c, err := v.Code()
	if err != nil {
		return "", err
	}
	what := v.TypeName()
	switch {
	case c.Flags&python.CodeCoroutine != 0:
		what = "coroutine " + what
	case c.Flags&(python.CodeGenerator|python.CodeAsyncGenerator) != 0:
		what = "generator " + what
	}
	var params []string
	for _, l := range c.Locals[:c.Args] {
		params = append(params, l.Name)
	}
	return fmt.Sprintf("%s %s(%s) at %s:%d, code %#x", what, c.Qualname, join(params), c.File, c.FirstLine, c.Addr()), nil
}

func join(names []string) string {
	s := ""
	for i, n := range names {
		if i > 0 {
			s += ", "
		}
		s += n
	}
	return s
}

// callable describes a C function with the place in its file that a probe attaches to.
func (d *describer) callable(v python.Value) (string, error) {
	c, err := v.Callable()
	if err != nil {
		return "", err
	}
	s := string(c.Kind)
	if c.Name != "" {
		s += " " + c.Name
	}
	s += fmt.Sprintf(", code at %#x", c.Addr)
	if m, off, err := c.File(d.Maps); err == nil {
		s += fmt.Sprintf(", offset %#x in %s", off, m.Path)
	}
	return s, nil
}

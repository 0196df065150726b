package inspect

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"inferspan/probes/python"
)

// Print writes a description, a line for each object.
func Print(w io.Writer, n *Node) error {
	var b strings.Builder
	b.WriteString(summary(n))
	b.WriteByte('\n')
	parts(&b, n, "  ")
	_, err := io.WriteString(w, b.String())
	return err
}

func parts(b *strings.Builder, n *Node, indent string) {
	for i := range n.Parts {
		p := &n.Parts[i]
		b.WriteString(indent)
		switch {
		case p.Index != nil:
			fmt.Fprintf(b, "[%d]", *p.Index)
		case p.Key != nil:
			b.WriteString(inline(p.Key))
		default:
			b.WriteString(p.Name)
		}
		b.WriteString(": " + summary(&p.Node) + "\n")
		parts(b, &p.Node, indent+"  ")
	}
	if n.More != 0 && !n.depth && n.kind != python.Str && n.kind != python.Bytes {
		fmt.Fprintf(b, "%s... %d more\n", indent, n.More)
	}
}

// summary describes one object without its parts.
func summary(n *Node) string {
	switch {
	case n.Error != "":
		return n.Class + ": " + n.Error
	case n.kind == python.None:
		return "None"
	case n.kind == python.Type || n.Type == "module" || n.Is != "" && n.Value == nil && n.kind == python.Other && n.Parts == nil && !isEnum(n):
		return n.Is
	case n.kind == python.Int && n.Value == nil:
		return n.Class + ", " + n.Is
	case n.Value != nil:
		s := n.Class + " " + literal(n)
		if n.Is != "" {
			s = n.Class + "." + n.Is + " = " + literal(n)
		}
		if n.More > 0 {
			s += fmt.Sprintf("... (%d in all)", *n.Len)
		}
		return s
	case n.Len != nil:
		what := "elements"
		if n.kind == python.Dict {
			what = "entries"
		}
		return fmt.Sprintf("%s, %d %s", n.Class, *n.Len, what)
	case n.Is != "":
		return n.Class + "." + n.Is
	case n.depth:
		return fmt.Sprintf("%s at %s, %d attributes", n.Class, n.Addr, n.More)
	}
	return n.Class + " at " + n.Addr
}

// isEnum reports whether Is names a member of an Enum.
func isEnum(n *Node) bool { return !strings.ContainsAny(n.Is, " ,") && n.Is != "" }

func literal(n *Node) string {
	switch v := n.Value.(type) {
	case string:
		if n.kind == python.Str {
			return "'" + strings.ReplaceAll(strings.Trim(strconv.Quote(v), `"`), `\"`, `"`) + "'"
		}
		if n.kind == python.Bytes {
			return "b" + v
		}
		return v
	case bool:
		if v {
			return "True"
		}
		return "False"
	}
	return fmt.Sprint(n.Value)
}

// inline writes a key of a dict.
func inline(n *Node) string {
	switch {
	case n.Error != "":
		return "<" + n.Error + ">"
	case n.kind == python.None:
		return "None"
	case n.kind == python.Tuple:
		var s []string
		for i := range n.Parts {
			s = append(s, inline(&n.Parts[i].Node))
		}
		if n.More > 0 {
			s = append(s, "...")
		}
		return "(" + strings.Join(s, ", ") + ")"
	case n.Value != nil && n.Is == "":
		return literal(n)
	}
	return summary(n)
}

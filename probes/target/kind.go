package target

import (
	"errors"
	"strings"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// engineKind is what is to be known of an engine to find it on a host and to read
// its facts. Another engine is another one of these, in a file of its own.
type engineKind struct {
	name    string   // Engine.Kind
	title   string   // as the project writes it
	modules []string // packages whose import shows that a process runs the engine; the first is the engine itself
	dist    string   // the installed package, as in the name of its dist-info
	// versions are modules that have __version__.
	versions []string
	roles    map[Role]string // names of roles where the engine has words of its own

	markers []markerOf
	// byTitle finds the role in what the process calls itself, byCommand guesses it from
	// the arguments that it was started with.
	byTitle, byCommand func(cmdline []string) (roleOf, bool)
	// byExe finds the role of a program of the engine that is not Python; nil if it has none.
	byExe func(exe string) (roleOf, bool)
	// shows tells whether a process runs the engine whose interpreter cannot be read.
	shows func(maps []procfs.Mapping, cmdline []string) bool
	// refine adds what the interpreter says to a role that its stack showed; byMemory
	// finds the role in the interpreter when nothing else shows one. Each may be nil.
	refine, byMemory func(p *proc)
	// addresses returns what the interpreter of a gateway has of where requests go, among
	// other texts; nil if the engine has none.
	addresses func(p *proc) []string

	messages messageClasses
	// config fills in what the engine was configured with, and how its servers are reached.
	config func(s *scan, e *Engine, g []*proc)
	// tokenizer returns the directory or hub name of the tokenizer that a process uses.
	tokenizer func(p *proc) (name, revision string)
	// problems says what cannot be traced, besides what is common to all engines.
	problems func(e *Engine, g []*proc)
	// rules say what can be had of the engine.
	rules    func(c *capabilities) capabilityRules
	noEngine string // why processes that run its code are no engine
}

// kinds are the engines that are known. One that uses code of another stands before it.
var kinds = []*engineKind{&sglang, &vllm}

func kindOf(name string) *engineKind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	return nil
}

// RoleName names a role in the words of an engine.
func RoleName(kind string, r Role) string {
	if k := kindOf(kind); k != nil && k.roles[r] != "" {
		return k.roles[r]
	}
	return string(r)
}

// roleName is the name of a role in sentences.
func (k *engineKind) roleName(r Role) string {
	if k.roles[r] != "" {
		return k.roles[r]
	}
	return strings.ReplaceAll(string(r), "_", " ")
}

// markerOf is a function that only processes of one role run for good: qualified name
// (after the last dot before Python 3.11) and the end of the file's path. Where files
// moved, all places are listed.
type markerOf struct {
	name, file string
	kind       marker
	role       Role
	tree       lineage
}

// marker tells the markers of an engine apart.
type marker uint8

const noMarker marker = 0

// lineage says how a process stands to those that it was started from and that it starts.
type lineage uint8

const (
	inTree    lineage = iota
	ownTree           // a server of its own, whatever program started it
	manyTrees         // likewise, and what it starts are engines of their own
)

// roleOf says what a process does and how that is known.
type roleOf struct {
	role  Role
	index int
	ranks Ranks
	frame python.Frame // that shows the role; zero if the title or nothing does
	kind  marker
	tree  lineage
}

// imports returns the kinds of which the process has imported a package. An error
// other than python.ErrNotFound says that this cannot be told.
func imports(in *python.Interp) (out []*engineKind, err error) {
	for _, k := range kinds {
		for _, m := range k.modules {
			_, merr := in.Module(m)
			if merr == nil {
				out = append(out, k)
				break
			}
			if !isNotFound(merr) {
				err = merr
			}
		}
	}
	if len(out) > 0 {
		err = nil
	}
	return out, err
}

// unread returns the kinds that a process whose interpreter cannot be read may run.
func unread(maps []procfs.Mapping, cmdline []string) (out []*engineKind) {
	for _, k := range kinds {
		if k.shows(maps, cmdline) {
			out = append(out, k)
		}
	}
	return out
}

func isNotFound(err error) bool { return errors.Is(err, python.ErrNotFound) }

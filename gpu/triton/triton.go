// Package triton finds the names of Triton's kernels in the interpreter of a live process.
//
// Triton gives a kernel to the driver and keeps, in Python, the handle that it got and the
// name. Kernels are found from the modules that have them: functions of triton.jit with
// their caches of what was compiled of them, and those that torch.compile makes.
package triton

import (
	"slices"

	"inferspan/probes/python"
)

// Bounds. An engine has some 6,000 modules with 200,000 names in them, some hundred of
// them kernels, and of one up to tens of variants.
const (
	maxModules  = 1 << 16
	maxNames    = 1 << 16 // in one module
	maxVariants = 4096
	maxFound    = 1 << 14
	maxWrapped  = 8
)

// searches are made for a handle: a module that changes while it is read is missed by one.
const searches = 2

// namesAtOnce is how many names of modules are read at one look: some tenth of a second.
const namesAtOnce = 20_000

// classes whose instances lead to kernels, and how.
var classes = []struct {
	module, name string
	read         func(v python.Value, put func(handle uint64, name string))
}{
	{"triton.runtime.jit", "JITFunction", jitFunction},
	{"triton.runtime.autotuner", "Autotuner", wrapper},
	{"triton.runtime.autotuner", "Heuristics", wrapper},
	{"torch._inductor.runtime.triton_heuristics", "CachingAutotuner", autotuner},
}

// found is an object that leads to kernels.
type found struct {
	object python.Value
	read   func(v python.Value, put func(handle uint64, name string))
}

// Finder finds names. It is for one goroutine, that of the interpreter.
type Finder struct {
	pid   int            // of an interpreter that is not known yet
	in    *python.Interp // nil: not known yet
	found []found
	seen  map[uint64]bool // addresses of those
	tried map[uint64]int  // whole searches for a handle

	// Of the search under way.
	modules []python.Item
	classes map[uint64]int // by address
	wanted  []uint64
}

// Of returns a finder for the kernels of a process, whose interpreter may not be there yet.
// It looks at that by itself, beside others that do.
func Of(pid int) *Finder {
	f := New(nil)
	f.pid = pid
	return f
}

// New returns a finder for the kernels of an interpreter.
func New(in *python.Interp) *Finder {
	return &Finder{in: in, seen: make(map[uint64]bool), tried: make(map[uint64]int)}
}

// Names returns the names of those handles that are known so far. It reads a part of the
// modules only: it is to be called about once a second, with the handles that are not
// known yet.
func (f *Finder) Names(handles []uint64) map[uint64]string {
	missing := func(h uint64) bool { return f.tried[h] < searches }
	if !slices.ContainsFunc(handles, missing) {
		return nil
	}
	if len(f.modules) == 0 && !f.begin() {
		return nil // there is no Triton, or not yet
	}
	if f.wanted == nil {
		f.wanted = slices.Clone(handles)
	}
	f.search()
	out := make(map[uint64]string)
	for _, o := range f.found {
		o.read(o.object, func(handle uint64, name string) {
			if slices.Contains(handles, handle) {
				out[handle] = name
			}
		})
	}
	if len(f.modules) == 0 {
		for _, h := range f.wanted {
			f.tried[h]++
		}
		f.wanted = nil
	}
	return out
}

// begin begins to search all modules; false if there is nothing to find.
func (f *Finder) begin() bool {
	if f.in == nil {
		in, err := python.Open(f.pid)
		if err != nil {
			return false
		}
		f.in = in
	}
	f.classes = make(map[uint64]int)
	for i, c := range classes {
		if v, err := f.in.Path(c.module, c.name); err == nil {
			f.classes[v.Addr()] = i
		}
	}
	if len(f.classes) == 0 {
		return false
	}
	modules, err := f.in.Path("sys", "modules")
	if err != nil {
		return false
	}
	// What is imported last comes first: an engine's kernels, before the libraries below.
	f.modules, err = modules.Items(maxModules)
	return err == nil && len(f.modules) > 0
}

// search reads some more modules.
func (f *Finder) search() {
	for read := 0; len(f.modules) > 0 && read < namesAtOnce; read++ {
		last := len(f.modules) - 1
		module := f.modules[last].Value
		f.modules = f.modules[:last]
		names, err := module.Vars(maxNames)
		if err != nil {
			continue // not a module, or it changes: it has no kernels, or is found at a later search
		}
		read += len(names)
		for _, n := range names {
			i, ok := f.classes[n.Value.ClassAddr()]
			if ok && !f.seen[n.Value.Addr()] && len(f.found) < maxFound {
				f.seen[n.Value.Addr()] = true
				f.found = append(f.found, found{n.Value, classes[i].read})
			}
		}
	}
}

// jitFunction reads what was compiled of a function of triton.jit, for each device.
func jitFunction(v python.Value, put func(uint64, string)) {
	caches, err := v.Attr("device_caches")
	if err != nil {
		return
	}
	devices, err := caches.Items(maxVariants)
	if err != nil {
		return
	}
	for _, d := range devices {
		cache, err := d.Value.Index(0)
		if err != nil {
			continue
		}
		variants, err := cache.Items(maxVariants)
		if err != nil {
			continue
		}
		for _, k := range variants {
			kernel(k.Value, put)
		}
	}
}

// wrapper reads what a decorator wraps.
func wrapper(v python.Value, put func(uint64, string)) {
	for range maxWrapped {
		fn, err := v.Attr("fn")
		if err != nil {
			return
		}
		if _, err := fn.Attr("device_caches"); err == nil {
			jitFunction(fn, put)
			return
		}
		v = fn
	}
}

// autotuner reads what torch.compile has compiled.
func autotuner(v python.Value, put func(uint64, string)) {
	results, err := v.Attr("compile_results")
	if err != nil {
		return
	}
	all, err := results.List(maxVariants)
	if err != nil {
		return
	}
	for _, r := range all {
		if k, err := r.Attr("kernel"); err == nil {
			kernel(k, put)
		}
	}
}

// kernel reads one that was given to the driver.
func kernel(v python.Value, put func(uint64, string)) {
	function, err := v.Attr("function")
	if err != nil {
		return
	}
	handle, err := function.Int()
	if err != nil || handle == 0 {
		return // not given to the driver yet
	}
	attr, err := v.Attr("name")
	if err != nil {
		return
	}
	if name, err := attr.Str(); err == nil && name != "" {
		put(uint64(handle), name)
	}
}

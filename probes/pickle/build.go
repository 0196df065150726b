package pickle

// build runs the opcodes that make and fill containers and objects; false if the
// stack does not have what they need.
func (m *machine) build() bool {
	switch m.op {
	case opEmptyList:
		m.push(m.add(node{kind: List}))
	case opEmptyDict:
		m.push(m.add(node{kind: Dict}))
	case opEmptySet:
		m.push(m.add(node{kind: Set}))
	case opEmptyTuple:
		m.push(refEmpty)
	case opTuple1, opTuple2, opTuple3:
		return m.tuple(int(m.op-opTuple1) + 1)
	case opTuple, opList, opDict, opFrozenSet:
		items, ok := m.popMark()
		if !ok || m.op == opDict && len(items)%2 != 0 {
			return false
		}
		kind := Tuple
		switch m.op {
		case opList:
			kind = List
		case opDict:
			kind = Dict
		case opFrozenSet:
			kind = FrozenSet
		}
		r := m.add(node{kind: kind})
		m.append(r, items)
		m.push(r)
	case opAppend:
		item, ok := m.pop()
		to, ok2 := m.top()
		return ok && ok2 && m.extend(to, List, []ref{item})
	case opAppends, opAddItems:
		items, ok := m.popMark()
		to, ok2 := m.top()
		kind := List
		if m.op == opAddItems {
			kind = Set
		}
		return ok && ok2 && m.extend(to, kind, items)
	case opSetItem:
		v, ok := m.pop()
		k, ok2 := m.pop()
		to, ok3 := m.target()
		return ok && ok2 && ok3 && m.extend(to, Dict, []ref{k, v})
	case opSetItems:
		items, ok := m.items()
		if !ok || len(items)%2 != 0 {
			return false
		}
		to, ok := m.target()
		return ok && m.extend(to, Dict, items)
	case opStackGlobal:
		name, ok := m.pop()
		module, ok2 := m.pop()
		if !ok || !ok2 {
			return false
		}
		if m.lost && (name == refOpaque || module == refOpaque) {
			m.push(refOpaque)
			return true
		}
		if m.nodes[name].kind != String || m.nodes[module].kind != String {
			return false
		}
		m.push(m.add(node{kind: Global, a: uint32(module), b: uint32(name)}))
	case opReduce, opNewObj, opNewObjEx:
		return m.call()
	case opBuild:
		state, ok := m.pop()
		to, ok2 := m.top()
		if !ok || !ok2 {
			return false
		}
		switch n := &m.nodes[to]; n.kind {
		case Object:
			m.objs[n.a].state = state
		case Opaque:
		default:
			return false
		}
	}
	return true
}

// items are those of SETITEMS; where the mark is missing, all values there are.
func (m *machine) items() ([]ref, bool) {
	if len(m.marks) > 0 || !m.lost {
		return m.popMark()
	}
	m.work = append(m.work[:0], m.stack...) // the dict comes where they lay
	m.stack = m.stack[:0]
	return m.work, true
}

// target is the dict that items are set in, made up where it is missing.
func (m *machine) target() (ref, bool) {
	if m.lost && len(m.stack) == 0 {
		r := m.add(node{kind: Dict, open: true})
		m.push(r)
		return r, true
	}
	return m.top()
}

func (m *machine) tuple(n int) bool {
	var items [3]ref
	for k := n - 1; k >= 0; k-- {
		r, ok := m.pop()
		if !ok {
			return false
		}
		items[k] = r
	}
	r := m.add(node{kind: Tuple})
	m.append(r, items[:n])
	m.push(r)
	return true
}

// extend adds items to a container of a kind, or to an object as such.
func (m *machine) extend(to ref, kind Kind, items []ref) bool {
	switch n := m.nodes[to]; n.kind {
	case kind:
	case Opaque:
		return true
	case Object:
		part := &m.objs[n.a].items
		if kind == Dict {
			part = &m.objs[n.a].pairs
		}
		if *part == refInvalid {
			if kind == Set {
				kind = List
			}
			*part = m.add(node{kind: kind})
		}
		to = *part
	default:
		return false
	}
	m.append(to, items)
	return true
}

// call makes an object of a class or function and its arguments.
func (m *machine) call() bool {
	var o object
	ok := true
	if m.op == opNewObjEx {
		o.kwargs, ok = m.pop()
	}
	args, ok2 := m.pop()
	callee, ok3 := m.pop()
	if !ok || !ok2 || !ok3 {
		return false
	}
	o.callee, o.args = callee, args
	lost := callee == refOpaque || args == refOpaque
	if k := m.nodes[callee].kind; k != Global && k != Object && !lost {
		return false
	}
	if m.nodes[args].kind != Tuple && !lost {
		return false
	}
	m.push(m.object(o))
	return true
}

func (d *Decoder) object(o object) ref {
	d.objs = append(d.objs, o)
	return d.add(node{kind: Object, a: uint32(len(d.objs) - 1)})
}

// unwind puts together what is on the stack when the stream ends early.
func (d *Decoder) unwind() ref {
	d.reopen(len(d.stack) - 1)
	for n := len(d.marks); n > 0; n = len(d.marks) {
		from := int(d.marks[n-1])
		d.marks = d.marks[:n-1]
		items := append(d.work[:0], d.stack[from:]...)
		d.work = items
		d.stack = d.stack[:from]
		d.reopen(from - 1)
		below := node{}
		if from > 0 {
			below = d.nodes[d.stack[from-1]]
		}
		switch below.kind {
		case List:
			d.append(d.stack[from-1], d.pending(items, false))
		case Set:
			d.append(d.stack[from-1], items)
		case Dict:
			d.append(d.stack[from-1], d.pending(items, true))
		case Object: // items or pairs, which is not known
		default:
			r := d.add(node{kind: Tuple, open: true})
			d.append(r, items)
			if below.kind == Global {
				d.stack[from-1] = d.object(object{callee: d.stack[from-1], args: r})
				d.reopen(from - 1)
			} else {
				d.stack = append(d.stack, r)
			}
		}
	}
	if len(d.stack) == 0 {
		return refInvalid
	}
	root := d.pending(append(d.work[:0], d.stack...), false)
	return root[0]
}

// reopen marks a stack position as maybe incomplete.
func (d *Decoder) reopen(i int) {
	if i < 0 || i >= len(d.stack) || d.stack[i] < refFixed {
		return
	}
	d.nodes[d.stack[i]].open = true
}

// pending puts together the last of the items if parts of it lie on the stack
// one by one: a call that was not yet made or a state not yet set. Of pairs a key
// without a value is left out.
func (d *Decoder) pending(items []ref, pairs bool) []ref {
	for i := 0; i < len(items); i++ {
		if pairs && i%2 == 0 {
			continue
		}
		n := d.nodes[items[i]]
		switch {
		case n.kind == Global && i+1 < len(items):
			args := d.add(node{kind: Tuple, open: true})
			d.append(args, items[i+1:])
			o := d.object(object{callee: items[i], args: args})
			d.nodes[o].open = true
			items = append(items[:i], o)
		case n.kind == Object && i+2 == len(items) && d.nodes[items[i+1]].kind == Dict && d.nodes[items[i+1]].open:
			d.objs[n.a].state = items[i+1]
			d.nodes[items[i]].open = true
			items = items[:i+1]
		}
	}
	if pairs {
		items = items[:len(items)&^1]
	}
	return items
}

package pickle

// Keep marks a value and all that is in it as to be left alone by Blank.
func (d *Decoder) Keep(v Value) {
	if v.d != d || v.raw || d == nil {
		return
	}
	d.grow()
	d.work = append(d.work[:0], v.ref)
	for len(d.work) > 0 {
		r := d.work[len(d.work)-1]
		d.work = d.work[:len(d.work)-1]
		if d.seen[r] {
			continue
		}
		d.seen[r] = true
		switch n := &d.nodes[r]; n.kind {
		case List, Tuple, Dict, Set, FrozenSet:
			for c := n.a; c != 0; c = d.chunks[c].next {
				if ch := d.chunks[c]; !ch.raw {
					d.work = append(d.work, d.items[ch.from:ch.to]...)
				}
			}
		case Object:
			o := &d.objs[n.a]
			d.work = append(d.work, o.callee, o.args, o.kwargs, o.state, o.items, o.pairs)
		}
	}
}

// KeepOnly marks a value but not what is in it.
func (d *Decoder) KeepOnly(v Value) {
	if v.d == d && !v.raw && d != nil {
		d.grow()
		d.seen[v.ref] = true
	}
}

func (d *Decoder) grow() {
	if n := len(d.nodes); len(d.seen) < n {
		d.seen = append(d.seen, make([]bool, n-len(d.seen))...)
	}
}

// Blank overwrites in the stream, in place, all values that were not marked by
// Keep since they were read: numbers by 0, each byte of a str by x, bytes by 0. All
// keep their width, so that the stream reads as before but for those values. Names
// of globals stay, as do None, True and False. A value that occurs both in what is
// kept and elsewhere stays: a pickle has it once. It forgets the marks.
//
// Bytes that were not read, behind an error, are overwritten by 0 from there on.
func (d *Decoder) Blank(err error) {
	d.grow()
	for i := range d.nodes {
		if n := &d.nodes[i]; n.kind == Global {
			d.seen[n.a], d.seen[n.b] = true, true
		}
	}
	for i := int(refFixed); i < len(d.nodes); i++ {
		n := &d.nodes[i]
		if d.seen[i] {
			continue
		}
		switch n.kind {
		case Int, Float:
			if d.msgpack && n.n == 0 {
				d.fill(n.off-1, 1, 0)
			}
			d.fill(n.off, n.n, 0)
		case String:
			d.fill(n.off, n.n, 'x')
		case Bytes, ByteArray, Opaque:
			d.fill(n.off, n.n, 0)
		case List, Tuple, Dict, Set, FrozenSet:
			for c := n.a; c != 0; c = d.chunks[c].next {
				if ch := d.chunks[c]; ch.raw {
					d.fillScalars(ch)
				}
			}
		}
	}
	clear(d.seen)
	if e, ok := err.(*Error); ok {
		if end := int(d.tailAt) + len(d.tail); e.rest < end {
			d.fill(uint32(e.rest), uint32(end-e.rest), 0)
		}
	}
}

func (d *Decoder) fillScalars(ch chunk) {
	b := d.bytes(ch.from, ch.to-ch.from)
	for i := 0; i < len(b); {
		k, n := d.scalar(b[i])
		if n > 0 {
			clear(b[i+1 : i+1+n])
		} else if d.msgpack && k == Int {
			b[i] = 0
		}
		i += 1 + n
	}
}

// fill overwrites those of n bytes at off that are there.
func (d *Decoder) fill(off, n uint32, with byte) {
	end := uint64(off) + uint64(n)
	if h := uint64(len(d.head)); uint64(off) < h {
		set(d.head[off:min(end, h)], with)
	}
	if t := uint64(d.tailAt); end > t {
		from := max(uint64(off), t)
		if stop := min(end, t+uint64(len(d.tail))); from < stop {
			set(d.tail[from-t:stop-t], with)
		}
	}
}

func set(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

package httptap

// maxContent bounds the bytes of contents held at a time over all
// connections; beyond it, contents are left out.
const maxContent = 32 << 20

// budget is the room that contents have.
type budget struct {
	each    int    // most bytes of one content
	held    int    // bytes of all that are held
	refused uint64 // contents left out for lack of room
}

// text is content that is kept.
type text struct {
	b   []byte
	off bool // not wanted, or given up
}

// room reports whether a content that has some bytes may have n more.
func (c *budget) room(has, n int) bool {
	if c.held+n > maxContent || has+n > c.each {
		c.refused++
		return false
	}
	return true
}

// keep appends content while there is room for it.
func (c *budget) keep(t *text, b []byte) {
	if t.off {
		return
	}
	if !c.room(len(t.b), len(b)) {
		c.discard(t)
		t.off = true
		return
	}
	t.b = append(t.b, b...)
	c.held += len(b)
}

// trim empties the text, discard also gives its memory back.
func (c *budget) trim(t *text) {
	c.held -= len(t.b)
	t.b = t.b[:0]
}

func (c *budget) discard(t *text) {
	c.held -= len(t.b)
	t.b = nil
}

package python

// DequeLen returns the number of elements of a collections.deque, also of an
// instance of a subclass.
func (v Value) DequeLen() (int, error) {
	if v.in == nil {
		return 0, v.wrongType("deque")
	}
	n, err := retry(func() (int, error) {
		class, err := v.in.Path("_collections", "deque")
		if err != nil {
			return 0, err
		}
		if !v.IsInstance(class) {
			return 0, v.wrongType("deque")
		}
		b, err := v.object(v.in.layout.VarSize + 8)
		if err != nil {
			return 0, err
		}
		n := int64(u64at(b, v.in.layout.VarSize))
		if n < 0 || n > 1<<48 {
			return 0, corrupt(v.addr, "size of a deque")
		}
		return int(n), v.still()
	})
	return settle(v, n, err)
}

package correlate

// links is an item's place in a list; an item embeds it.
type links[T any] struct {
	prev, next *T
	live       bool // it is in the list
}

func (l *links[T]) place() *links[T] { return l }

// list is a list of items in order of arrival, from which any can be taken out.
type list[T any, P interface {
	*T
	place() *links[T]
}] struct {
	head, tail *T
	n          int
}

func (l *list[T, P]) push(x *T) {
	at := P(x).place()
	at.prev, at.live = l.tail, true
	if l.tail != nil {
		P(l.tail).place().next = x
	} else {
		l.head = x
	}
	l.tail = x
	l.n++
}

// remove does nothing if x is not in the list.
func (l *list[T, P]) remove(x *T) {
	at := P(x).place()
	if !at.live {
		return
	}
	if at.prev != nil {
		P(at.prev).place().next = at.next
	} else {
		l.head = at.next
	}
	if at.next != nil {
		P(at.next).place().prev = at.prev
	} else {
		l.tail = at.prev
	}
	*at = links[T]{}
	l.n--
}

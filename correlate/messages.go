package correlate

import "inferspan/correlate/signal"

// messages pairs what a core sent with its delivery to a front end. It holds
// the latest messages: a front end that is further behind than that has had
// its messages for seconds, and their delivery counts as not seen.
type messages struct {
	ring  []message
	next  uint64 // number of the next message; the first is 1
	byKey map[uint64]uint64
	early earlyKeys
}

const messageWindow = 2048

// receipt is when a front end had a message.
type receipt struct {
	at      signal.Mono // 0: not seen
	stamped bool        // by the front end's own stamp
}

type message struct {
	seq     uint64
	key     uint64
	recv    receipt
	client  int
	waiters []*request // requests whose first or last output is in it
}

// add notes a message that was sent and returns its number, 0 if it cannot be
// recognised, and the slot's former waiters, whose message was not seen to arrive.
func (m *messages) add(s *signal.StepOutput) (seq uint64, given []*request) {
	if s.Key == 0 {
		return 0, nil
	}
	if m.ring == nil {
		m.ring = make([]message, messageWindow)
		m.byKey = make(map[uint64]uint64, messageWindow)
		m.next = 1
	}
	seq = m.next
	m.next++
	slot := &m.ring[seq%messageWindow]
	if slot.recv.at == 0 && slot.seq != 0 && m.byKey[slot.key] == slot.seq {
		delete(m.byKey, slot.key)
	}
	given = slot.waiters
	*slot = message{seq: seq, key: s.Key, client: s.Client}
	if r, ok := m.early.take(s.Key); ok {
		slot.recv = r
	} else {
		m.byKey[s.Key] = seq
	}
	return seq, given
}

// get returns the message of that number, nil if it has left the window.
func (m *messages) get(seq uint64) *message {
	if seq == 0 || m.ring == nil {
		return nil
	}
	if slot := &m.ring[seq%messageWindow]; slot.seq == seq {
		return slot
	}
	return nil
}

// deliver notes a delivery and returns the message, nil if it is not known (yet).
func (m *messages) deliver(key uint64, at receipt) *message {
	seq, ok := m.byKey[key]
	if !ok {
		m.early.put(key, at)
		return nil
	}
	delete(m.byKey, key)
	slot := &m.ring[seq%messageWindow]
	slot.recv = at
	return slot
}

// earlyKeys holds deliveries that came before the message they belong to, the
// latest ones: records of two processes may pass each other by a little.
type earlyKeys struct {
	keys [64]uint64
	at   [64]receipt
	n    int
}

func (k *earlyKeys) put(key uint64, at receipt) {
	i := k.n % len(k.keys)
	k.keys[i], k.at[i] = key, at
	k.n++
}

func (k *earlyKeys) take(key uint64) (receipt, bool) {
	for i := range k.keys {
		if k.keys[i] == key {
			k.keys[i] = 0
			return k.at[i], true
		}
	}
	return receipt{}, false
}

func (c *Correlator) delivered(s *signal.Delivered) {
	if s.Key == 0 {
		return
	}
	e := c.engine(s.Engine)
	recv := receipt{s.At, s.Stamped}
	m := e.msgs.deliver(s.Key, recv)
	if m == nil {
		return
	}
	e.seen.Receipts = true
	e.learnFront(m.client, s.PID)
	waiters := m.waiters
	m.waiters = nil
	for _, r := range waiters {
		if m.client < 0 {
			e.learnFront(r.client, s.PID)
		}
		c.requestDelivered(r, m.seq, recv)
	}
	clear(waiters)
	if m.waiters == nil {
		m.waiters = waiters[:0]
	}
}

package correlate

import (
	"fmt"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// TestStorm: a load balancer drops all its connections at once, and the aborts
// come in another order.
func TestStorm(t *testing.T) {
	const n = 4000
	s := newScript()
	for i := range n {
		s.begin(100+float64(i)*0.1, uint64(i), "/v1/chat/completions").add(100.05+float64(i)*0.1, 100.06+float64(i)*0.1, fmt.Sprint("chatcmpl-", i))
	}
	var ids []string
	for i := range n {
		s.endHTTP(1000+float64(i)*0.01, uint64(i), 0, "", signal.OutcomeDisconnect)
		ids = append(ids, fmt.Sprintf("chatcmpl-%d-x", n-1-i))
	}
	for i := range n {
		s.put(&signal.RequestAborted{At: at(1050 + float64(i)*0.01), Core: testCore, IDs: ids[i : i+1]})
	}
	c := New(NewOptions())
	right, trees := 0, 0
	for _, x := range s.sig {
		c.Put(x, func(tr *trace.Tree) {
			trees++
			if d := tr.Spans[len(tr.Spans)-1].Start - tr.Spans[0].Start; len(tr.Spans) == 2 && d > 49_000 && d < 51_000 {
				right++
			}
		})
	}
	if right != n || trees != n {
		t.Errorf("%d trees, %d right, of %d", trees, right, n)
	}
}

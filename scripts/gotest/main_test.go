package main

import (
	"strings"
	"testing"
)

func TestShow(t *testing.T) {
	in := strings.Join([]string{
		`{"Action":"run","Package":"p","Test":"A"}`,
		`{"Action":"output","Package":"p","Test":"A","Output":"=== RUN   A\n"}`,
		`{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: because\n"}`,
		`{"Action":"output","Package":"p","Test":"A","Output":"--- SKIP: A (0.00s)\n"}`,
		`{"Action":"skip","Package":"p","Test":"A"}`,
		`{"Action":"output","Package":"p","Test":"B","Output":"quiet\n"}`,
		`{"Action":"pass","Package":"p","Test":"B"}`,
		`{"Action":"output","Package":"p","Test":"C","Output":"    c_test.go:1: wrong\n"}`,
		`{"Action":"fail","Package":"p","Test":"C"}`,
		`{"Action":"output","Package":"p","Output":"FAIL\n"}`,
		`{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}`,
		`{"Action":"fail","Package":"p"}`,
		`{"Action":"output","Package":"q","Output":"ok  \tq\t0.1s\n"}`,
		`{"Action":"skip","Package":"r"}`,
		`not an event`,
	}, "\n")
	var out strings.Builder
	if n := show(strings.NewReader(in), &out, false); n != 1 {
		t.Errorf("%d skips, want 1", n)
	}
	want := "    a_test.go:1: because\n--- SKIP: A (0.00s)\n    c_test.go:1: wrong\nFAIL\tp\t0.1s\nFAIL\nok  \tq\t0.1s\nnot an event"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	show(strings.NewReader(in), &out, true)
	if !strings.Contains(out.String(), "quiet\n") {
		t.Error("-v leaves out output")
	}
}

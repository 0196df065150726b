package httptap

import (
	"encoding/json"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
)

func TestGrammarSorted(t *testing.T) {
	for n, r := range grammar {
		if !sort.SliceIsSorted(r.members, func(i, j int) bool { return r.members[i].key < r.members[j].key }) {
			t.Errorf("members of node %d are not sorted", n)
		}
		for _, m := range r.members {
			if got := node(n).member([]byte(m.key)); got != m.n {
				t.Errorf("node %d: member %q is %d, want %d", n, m.key, got, m.n)
			}
		}
	}
	for _, l := range [][]string{lineFields, eventNames} {
		if !sort.StringsAreSorted(l) {
			t.Errorf("not sorted: %q", l)
		}
	}
}

// ignore is a reader of nothing.
type ignore struct{}

func (ignore) open(node, bool)        {}
func (ignore) close(node)             {}
func (ignore) str(node, []byte, bool) {}
func (ignore) num(node, []byte)       {}
func (ignore) lit(node, byte)         {}

func scan(b []byte, r docReader, cut func(n int) int) *scanner {
	s := new(scanner)
	s.reset()
	for len(b) > 0 {
		n := cut(len(b))
		s.feed(b[:n], r)
		b = b[n:]
	}
	s.finish(r)
	return s
}

func whole(n int) int  { return n }
func bytewise(int) int { return 1 }

func TestScannerValidity(t *testing.T) {
	for _, doc := range []string{
		`{}`, `[]`, `{"a":[1,2,{"b":null}]}`, ` "x" `, `-0.5e+10`, `1`, `true`, `{"a":1,}`, `[1,]`, `{"a" 1}`, `{a:1}`, `01`, `1.`, `.5`, `-`,
		`1e`, `"\u00e9"`, `"\u00g9"`, `"\x"`, "\"\n\"", `[1 2]`, `{} {}`, `nul`, `nulll`, `{"a":tru}`, `[[[[]]]]`, `[}`, `{]`, `"`, `"\`, ``,
		`{"a":1}}`, `--1`, `1-2`, `[-]`, `NaN`,
	} {
		for _, cut := range []func(int) int{whole, bytewise} {
			if got, want := scan([]byte(doc), ignore{}, cut).complete(), json.Valid([]byte(doc)); got != want {
				t.Errorf("%q: complete %v, valid %v", doc, got, want)
			}
		}
	}
	deep := strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1)
	if scan([]byte(deep), ignore{}, whole).complete() {
		t.Error("deeper than maxDepth, yet accepted")
	}
	if deep = deep[1 : len(deep)-1]; !scan([]byte(deep), ignore{}, whole).complete() {
		t.Error("maxDepth refused")
	}
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte(`{"model":"m","n":2,"messages":[{"role":"user","content":"h\u00e9"}],"temperature":1e-3}`), uint64(1))
	f.Add([]byte(`{"usage":{"prompt_tokens":1.0},"choices":[{"index":0,"finish_reason":"stop"}]}`), uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		var one, two requestFields
		s := scan(b, &one, whole)
		if deep := strings.Count(string(b), "[")+strings.Count(string(b), "{") > maxDepth; !deep && s.complete() != json.Valid(b) {
			t.Fatalf("complete %v, valid %v", s.complete(), json.Valid(b))
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		if scan(b, &two, func(n int) int { return 1 + rnd.IntN(n) }).complete() != s.complete() {
			t.Fatal("validity depends on the split")
		}
		if one.body(apiChat) != two.body(apiChat) || one.body(apiCompletions) != two.body(apiCompletions) {
			t.Fatalf("fields depend on the split: %+v, %+v", one, two)
		}
	})
}

func TestUnescape(t *testing.T) {
	for _, s := range []string{`plain`, `a\"b\\c\/d\b\f\n\r\t`, `\u00e9\u4f60`, `\ud83d\ude00`, `\ud83d`, `\ud83dx`, `\ud83d\n`, `\ude00\ud83d`} {
		var want string
		if err := json.Unmarshal([]byte(`"`+s+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if got := string(unescape(nil, []byte(s))); got != want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
}

// TestCutInputs: of a list that is cut it is not known how many there are.
func TestCutInputs(t *testing.T) {
	for _, c := range []struct {
		api  api
		doc  string
		n    int64
		more bool
	}{
		{apiCompletions, `{"prompt":"ab`, 1, false},
		{apiCompletions, `{"prompt":["ab`, 0, true},
		{apiCompletions, `{"prompt":["ab","c`, 1, true},
		{apiCompletions, `{"prompt":["ab"],"model":"`, 1, false},
		{apiCompletions, `{"prompt":[1,2,3`, 1, false},
		{apiCompletions, `{"prompt":[[1,2`, 1, true},
		{apiChat, `{"messages":[{"role":"user","content":"a`, 1, false},
		{apiChat, `{"messages":[[{"role":"user","content":"a`, 1, true},
		{apiEmbeddings, `{"input":["a","`, 1, true},
		{apiRerank, `{"documents":["a","`, 1, true},
		{apiScore, `{"text_1":"q","text_2":["a","`, 1, true},
	} {
		var f requestFields
		scan([]byte(c.doc), &f, func(n int) int { return n })
		if b := f.body(c.api); b.Inputs != c.n || b.MoreInputs != c.more {
			t.Errorf("%s: %d inputs, more %v, want %d, %v", c.doc, b.Inputs, b.MoreInputs, c.n, c.more)
		}
	}
}

func TestRequestFields(t *testing.T) {
	for _, c := range []struct {
		api  api
		doc  string
		want string
	}{
		{apiChat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":5,"max_completion_tokens":7}`, `Model="m" MaxTokens=7 Inputs=1`},
		{apiChat, `{"max_tokens":5,"max_completion_tokens":null}`, `MaxTokens=5`},
		{apiChat, `{"messages":[[{"role":"user"}],[{"role":"user"}],[]]}`, `Inputs=3`},
		{apiChat, `{"messages":{"a":1}}`, ``},
		{apiChat, `{"model":1,"n":"2","temperature":"warm","top_p":true,"top_k":[40],"stream":"yes","user":null,"max_tokens":{}}`, ``},
		{apiChat, `{"n":2.0,"top_k":1e2,"max_tokens":1.5,"temperature":0,"top_p":1e-2}`, `N=2 Temperature=0 TopP=0.01 TopK=100`},
		{apiChat, `{"n":2,"n":3,"model":"a","model":7}`, `N=3`},
		{apiChat, `{"stream":false,"user":"\u00fc\n","model":"a\/b"}`, `Model="a/b" Stream=false User="ü\n"`},
		{apiChat, `{"tools":[{"type":"function"},{"type":"function"}],"tool_choice":"auto"}`, `Tools=2`},
		{apiChat, `{"mod\u0065l":"m"}`, `Model="m"`},
		{apiChat, `{"nested":{"model":"no","n":9},"n":4,"metadata":[{"n":1}]}`, `N=4`},
		{apiChat, `{"max_tokens":99999999999999999999,"top_k":-1}`, `TopK=-1`},
		{apiCompletions, `{"prompt":"a"}`, `Inputs=1`},
		{apiCompletions, `{"prompt":["a","b","c"],"max_tokens":1,"max_output_tokens":9}`, `MaxTokens=1 Inputs=3`},
		{apiCompletions, `{"prompt":[1,2,3]}`, `Inputs=1`},
		{apiCompletions, `{"prompt":[[1,2],[3]]}`, `Inputs=2`},
		{apiCompletions, `{"prompt":[]}`, ``},
		{apiCompletions, `{"prompt":null}`, ``},
		{apiResponses, `{"input":"a","max_output_tokens":3,"max_tokens":9}`, `MaxTokens=3 Inputs=1`},
		{apiResponses, `{"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, `Inputs=1`},
		{apiMessages, `{"messages":[{"role":"user","content":"a"}],"max_tokens":3}`, `MaxTokens=3 Inputs=1`},
		{apiEmbeddings, `{"input":["a","b"]}`, `Inputs=2`},
		{apiEmbeddings, `{"input":[5,6,7]}`, `Inputs=1`},
		{apiEmbeddings, `{"messages":[{"role":"user","content":"a"}]}`, `Inputs=1`},
		{apiScore, `{"text_1":"q","text_2":["a","b"]}`, `Inputs=2`},
		{apiScore, `{"queries":["a","b","c"],"documents":["d","e","f"]}`, `Inputs=3`},
		{apiRerank, `{"query":"q","documents":["a","b","c"]}`, `Inputs=3`},
	} {
		for _, cut := range []func(int) int{whole, bytewise} {
			var f requestFields
			if !scan([]byte(c.doc), &f, cut).complete() {
				t.Errorf("%s: not complete", c.doc)
			}
			b := f.body(c.api)
			if got := strings.TrimSpace(fieldsOf(b)); got != c.want {
				t.Errorf("%s: %s, want %s", c.doc, got, c.want)
			}
		}
	}
}

func TestRequestFieldsCut(t *testing.T) {
	doc := `{"model":"m","n":2,"messages":[{"role":"user","content":"` + strings.Repeat("z", 100) + `"}],"temperature":0.5}`
	for n := range doc {
		var f requestFields
		s := scan([]byte(doc[:n]), &f, whole)
		if s.complete() {
			t.Fatalf("cut at %d: complete", n)
		}
		b := f.body(apiChat)
		if b.Model.OK && b.Model.V != "m" || b.N.OK && b.N.V != 2 || b.Temperature.OK && b.Temperature.V != 0.5 {
			t.Fatalf("cut at %d: %+v", n, b)
		}
		if n > 20 && (!b.Model.OK || !b.N.OK) {
			t.Fatalf("cut at %d: fields before the cut are unknown", n)
		}
	}
}

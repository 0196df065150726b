package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

type fixture struct {
	Tokenizer json.RawMessage
	Texts     map[string]string
}

// load reads a fixture made by testdata/make.py.
func load(tb testing.TB, name string) fixture {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name + ".json.gz")
	if err != nil {
		tb.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		tb.Fatal(err)
	}
	var f fixture
	if err := json.NewDecoder(z).Decode(&f); err != nil {
		tb.Fatal(err)
	}
	return f
}

var fixtures = []string{"bytelevel", "bytefallback", "metaspace", "wordpiece"}

// TestText compares with what the tokenizers library says of each token.
func TestText(t *testing.T) {
	for _, name := range fixtures {
		t.Run(name, func(t *testing.T) {
			f := load(t, name)
			tab, err := Load(bytes.NewReader(f.Tokenizer))
			if err != nil {
				t.Fatal(err)
			}
			if tab.Len() != len(f.Texts) || tab.Len() < 50 {
				t.Errorf("%d tokens, want %d", tab.Len(), len(f.Texts))
			}
			for key, want := range f.Texts {
				id, _ := strconv.ParseInt(key, 10, 64)
				if got, ok := tab.Text(id); !ok || got != want {
					t.Errorf("token %d = %q, %v; want %q", id, got, ok, want)
				}
			}
			for _, id := range []int64{-1, int64(tab.Len()), 1 << 40} {
				if got, ok := tab.Text(id); ok {
					t.Errorf("token %d = %q, want none", id, got)
				}
			}
		})
	}
}

var styles = []struct{ name, file, want string }{
	{"plain", `{"model":{"type":"WordLevel","vocab":{"a b":0}}}`, "a b"},
	{"end of word", `{"decoder":{"type":"BPEDecoder","suffix":"</w>"},"model":{"vocab":{"low</w>":0}}}`, "low "},
	{"within a word", `{"decoder":{"type":"BPEDecoder","suffix":"</w>"},"model":{"vocab":{"low":0}}}`, "low"},
	{"WordPiece by its model", `{"model":{"type":"WordPiece","continuing_subword_prefix":"@@","vocab":{"@@ing":0}}}`, "ing"},
	{"byte level by its pre-tokenizer", `{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x"}},{"type":"ByteLevel"}]},"model":{"vocab":{"\u0120x":0}}}`, " x"},
	{"decoder after the model", `{"model":{"vocab":{"\u0120x":0},"merges":[["a","b"],"c d"]},"decoder":{"type":"ByteLevel"}}`, " x"},
	{"byte", `{"decoder":{"type":"ByteFallback"},"model":{"vocab":{"<0x41>":0}}}`, "A"},
	{"no byte without fallback", `{"model":{"vocab":{"<0x41>":0}}}`, "<0x41>"},
	{"part of a character", `{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"\u00e2\u0124":0}}}`, "\ufffd"}, // E2 82
	{"added token over the vocabulary", `{"added_tokens":[{"id":0,"content":"\u0120"}],"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":0}}}`, "\u0120"},
	{"added tokens only", `{"added_tokens":[{"id":0,"content":"x"}],"model":{"vocab":{}}}`, "x"},
	{"null members", `{"added_tokens":null,"decoder":null,"pre_tokenizer":null,"model":{"byte_fallback":null,"continuing_subword_prefix":null,"vocab":{"a":0}}}`, "a"},
}

func TestStyles(t *testing.T) {
	for _, c := range styles {
		t.Run(c.name, func(t *testing.T) {
			tab, err := Load(strings.NewReader(c.file))
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := tab.Text(0); !ok || got != c.want {
				t.Errorf("token 0 = %q, %v; want %q", got, ok, c.want)
			}
		})
	}
}

func TestLossy(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"\xff":                   "\ufffd",
		"\xe2\x82":               "\ufffd",
		"\xe2\x82\xe2\x82\xac":   "\ufffd€",
		"\xf0\x9f\x98":           "\ufffd",
		"\xed\xa0\x80":           "\ufffd\ufffd\ufffd", // a surrogate
		"\xf4\x90\x80":           "\ufffd\ufffd\ufffd", // beyond U+10FFFF
		"a\xc3b":                 "a\ufffdb",
		"\x80\x80":               "\ufffd\ufffd",
		"\xc0\xaf":               "\ufffd\ufffd",
		"\xe0\x80":               "\ufffd\ufffd",
		"ok \ufffd stays \u20ac": "ok \ufffd stays €",
	} {
		if got := lossy([]byte(in)); got != want {
			t.Errorf("lossy(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       error
	}{
		{"empty", ``, ErrFormat},
		{"not JSON", `<html>`, ErrFormat},
		{"list", `[]`, ErrFormat},
		{"no model", `{"version":"1.0"}`, ErrFormat},
		{"cut", `{"model":{"vocab":{"a":0`, ErrFormat},
		{"cut in the merges", `{"model":{"vocab":{"a":0},"merges":["a b"`, ErrFormat},
		{"id is text", `{"model":{"vocab":{"a":"0"}}}`, ErrFormat},
		{"negative id", `{"model":{"vocab":{"a":-1}}}`, ErrLimit},
		{"huge id", `{"model":{"vocab":{"a":9000000}}}`, ErrLimit},
		{"vocabulary is text", `{"model":{"vocab":"a"}}`, ErrFormat},
		{"empty piece", `{"model":{"vocab":[[]]}}`, ErrFormat},
		{"piece without text", `{"model":{"vocab":[[1,2]]}}`, ErrFormat},
		{"added token without id", `{"added_tokens":[{"content":"a"}],"model":{"vocab":{"b":0}}}`, ErrFormat},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, err := Load(strings.NewReader(c.file))
			if !errors.Is(err, c.want) || tab != nil {
				t.Errorf("Load = %v, %v; want %v", tab, err, c.want)
			}
		})
	}
	t.Run("endless", func(t *testing.T) {
		if testing.Short() {
			t.Skip("reads 128 MiB")
		}
		_, err := Load(io.MultiReader(strings.NewReader(`{"x":"`), endless{}))
		if !errors.Is(err, ErrLimit) {
			t.Errorf("Load = %v, want %v", err, ErrLimit)
		}
	})
	t.Run("reader fails", func(t *testing.T) {
		_, err := Load(io.MultiReader(strings.NewReader(`{`), failing{}))
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("Load = %v, want %v", err, os.ErrPermission)
		}
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, os.ErrPermission }

func FuzzLoad(f *testing.F) {
	for _, s := range styles {
		f.Add([]byte(s.file))
	}
	f.Add([]byte(`{"added_tokens":[{"id":1,"content":"x"}],"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"}]},"model":{"type":"Unigram","vocab":[["a",-1.5],["b",0]]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		tab, err := Load(bytes.NewReader(b))
		if (tab == nil) == (err == nil) {
			t.Fatalf("Load = %v, %v", tab, err)
		}
		if err != nil {
			return
		}
		n := 0
		for id := range int64(len(tab.entries)) {
			s, ok := tab.Text(id)
			if !utf8.ValidString(s) {
				t.Fatalf("token %d is not UTF-8: %q", id, s)
			}
			if ok {
				n++
			} else if s != "" {
				t.Fatalf("no token %d, but the text %q", id, s)
			}
		}
		if n != tab.Len() || n == 0 {
			t.Fatalf("%d texts of %d tokens", n, tab.Len())
		}
	})
}

func BenchmarkText(b *testing.B) {
	tab, err := Load(bytes.NewReader(load(b, "bytelevel").Tokenizer))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		tab.Text(int64(i % tab.Len()))
	}
}

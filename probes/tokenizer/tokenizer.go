// Package tokenizer reads the vocabulary of a Hugging Face tokenizer.json, to give
// the text of single tokens. It does not tokenize.
package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds. The largest vocabularies in use have some 260,000 tokens in a file of
// 35 MB.
const (
	maxFile  = 128 << 20
	maxID    = 1 << 21
	maxText  = 64 << 20 // of all tokens together
	maxDepth = 64       // of nested decoders
)

// ErrLimit says that the file is larger than any that is in use.
var ErrLimit = errors.New("tokenizer is too large")

// ErrFormat says that the file is not a tokenizer.json.
var ErrFormat = errors.New("not a tokenizer.json")

// style is how a vocabulary writes text.
type style uint8

const (
	plain     style = iota
	byteLevel       // each byte is a printable character (GPT-2)
	metaspace       // a space is U+2581 (SentencePiece)
	wordPiece       // a piece that continues a word has a prefix
	endOfWord       // a piece that ends a word has a suffix
)

// Table has the texts of the tokens of a vocabulary. It is read-only and may be
// used by several goroutines.
type Table struct {
	text    []byte
	entries []entry // by id
	count   int

	style        style
	space        string // metaspace: what stands for a space
	affix        string // wordPiece, endOfWord
	byteFallback bool   // "<0x0A>" is a byte
}

type entry struct {
	start, end uint32
	used       bool
	added      bool // its text is what it says
}

// Load reads a tokenizer.json: BPE, WordPiece, WordLevel and Unigram models with
// byte-level, SentencePiece or WordPiece text. Errors wrap ErrFormat or ErrLimit, or
// are those of r.
func Load(r io.Reader) (*Table, error) {
	t := new(Table)
	l := &io.LimitedReader{R: r, N: maxFile + 1}
	err := t.load(json.NewDecoder(l))
	if l.N == 0 {
		err = fmt.Errorf("%w: more than %d bytes", ErrLimit, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	return t, nil
}

// Len returns the number of tokens.
func (t *Table) Len() int { return t.count }

// Text returns the text of a token as it is within a sequence: with the space
// before a word where the vocabulary keeps it with the word, which decoders drop
// at the start of a text. Bytes that are not UTF-8 by themselves, as of tokens
// that hold a part of a character, become U+FFFD. WordPiece vocabularies do not
// say where spaces are; texts have none. ok is false if there is no such token.
func (t *Table) Text(id int64) (text string, ok bool) {
	if id < 0 || id >= int64(len(t.entries)) || !t.entries[id].used {
		return "", false
	}
	e := t.entries[id]
	raw := t.text[e.start:e.end]
	if e.added {
		return lossy(raw), true
	}
	if t.byteFallback {
		if b, ok := fallbackByte(raw); ok {
			return lossy([]byte{b}), true
		}
	}
	switch t.style {
	case byteLevel:
		return lossy(byteLevelBytes(raw)), true
	case metaspace:
		return strings.ReplaceAll(lossy(raw), t.space, " "), true
	case wordPiece:
		return strings.TrimPrefix(lossy(raw), t.affix), true
	case endOfWord:
		s, end := strings.CutSuffix(lossy(raw), t.affix)
		if end {
			s += " "
		}
		return s, true
	}
	return lossy(raw), true
}

// fallbackByte reads "<0x0A>".
func fallbackByte(b []byte) (byte, bool) {
	if len(b) != 6 || string(b[:3]) != "<0x" || b[5] != '>' {
		return 0, false
	}
	hi, ok1 := hexDigit(b[3])
	lo, ok2 := hexDigit(b[4])
	return hi<<4 | lo, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// charByte is the byte that a character of the byte-level alphabet stands for: the
// printable ones of Latin-1 stand for themselves, the others, in order, are U+0100
// and following (bytes_to_unicode of GPT-2's encoder.py).
var charByte = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			m[rune(b)] = byte(b)
		default:
			m[next] = byte(b)
			next++
		}
	}
	return m
}()

// byteLevelBytes returns the bytes that a piece stands for; one with a character
// that is not in the alphabet stands for itself.
func byteLevelBytes(piece []byte) []byte {
	out := make([]byte, 0, len(piece))
	for i := 0; i < len(piece); {
		r, n := utf8.DecodeRune(piece[i:])
		b, ok := charByte[r]
		if !ok {
			return piece
		}
		out = append(out, b)
		i += n
	}
	return out
}

// lossy returns b as UTF-8, with one U+FFFD for each maximal part of a character
// that is not completed (Unicode 3.9, as the tokenizers library does).
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var sb strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			n = subpart(b)
		}
		sb.WriteRune(r)
		b = b[n:]
	}
	return sb.String()
}

// subpart returns the length of the longest start of b that could begin a
// character, at least 1.
func subpart(b []byte) int {
	var need int
	lo, hi := byte(0x80), byte(0xbf)
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
		if c == 0xe0 {
			lo = 0xa0
		}
		if c == 0xed {
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 3
		if c == 0xf0 {
			lo = 0x90
		}
		if c == 0xf4 {
			hi = 0x8f
		}
	}
	n := 1
	for n <= need && n < len(b) && b[n] >= lo && b[n] <= hi {
		n++
		lo, hi = 0x80, 0xbf
	}
	return n
}

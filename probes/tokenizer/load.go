package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The file is read as a stream: the merges, most of it, are skipped.

// load reads the whole object.
func (t *Table) load(d *json.Decoder) error {
	var dec, pre component
	var kind string
	added := []addedToken{}
	err := object(d, func(key string) error {
		switch key {
		case "added_tokens":
			return array(d, func() error {
				var a addedToken
				if err := d.Decode(&a); err != nil {
					return err
				}
				if len(added) >= maxID {
					return fmt.Errorf("%w: more than %d added tokens", ErrLimit, maxID)
				}
				added = append(added, a)
				return nil
			})
		case "decoder":
			return d.Decode(&dec)
		case "pre_tokenizer":
			return d.Decode(&pre)
		case "model":
			return t.model(d, &kind)
		}
		return skip(d)
	})
	if err != nil {
		return format(err)
	}
	for _, a := range added {
		if a.ID == nil || a.Content == nil {
			return fmt.Errorf("%w: added token without id or content", ErrFormat)
		}
		if err := t.put(*a.ID, *a.Content, true); err != nil {
			return err
		}
	}
	if t.count == 0 {
		return fmt.Errorf("%w: no vocabulary", ErrFormat)
	}
	t.findStyle(kind, &dec, &pre)
	return nil
}

// format marks errors of the JSON decoder.
func format(err error) error {
	if errors.Is(err, ErrLimit) || errors.Is(err, ErrFormat) {
		return err
	}
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &typ) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

type addedToken struct {
	ID      *int64  `json:"id"`
	Content *string `json:"content"`
}

func (t *Table) put(id int64, text string, added bool) error {
	if id < 0 || id >= maxID {
		return fmt.Errorf("%w: token id %d", ErrLimit, id)
	}
	if len(t.text)+len(text) > maxText {
		return fmt.Errorf("%w: more than %d bytes of text", ErrLimit, maxText)
	}
	for int64(len(t.entries)) <= id {
		t.entries = append(t.entries, entry{})
	}
	if !t.entries[id].used {
		t.count++
	}
	start := len(t.text)
	t.text = append(t.text, text...)
	t.entries[id] = entry{start: uint32(start), end: uint32(len(t.text)), used: true, added: added}
	return nil
}

// model reads the vocabulary: a map of texts to ids, or for Unigram a list of
// texts with scores.
func (t *Table) model(d *json.Decoder, kind *string) error {
	return object(d, func(key string) error {
		switch key {
		case "type":
			return d.Decode(kind)
		case "byte_fallback":
			var on *bool
			if err := d.Decode(&on); err != nil {
				return err
			}
			t.byteFallback = t.byteFallback || on != nil && *on
			return nil
		case "continuing_subword_prefix":
			var p *string
			if err := d.Decode(&p); err != nil {
				return err
			}
			if p != nil {
				t.affix = *p
			}
			return nil
		case "vocab":
			return t.vocab(d)
		}
		return skip(d)
	})
}

func (t *Table) vocab(d *json.Decoder) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}
	switch tok {
	case json.Delim('{'):
		return members(d, func(text string) error {
			var id int64
			if err := d.Decode(&id); err != nil {
				return err
			}
			return t.put(id, text, false)
		})
	case json.Delim('['):
		var id int64
		return elements(d, func() error {
			var piece []any
			if err := d.Decode(&piece); err != nil {
				return err
			}
			if len(piece) == 0 {
				return fmt.Errorf("%w: empty entry in the vocabulary", ErrFormat)
			}
			text, ok := piece[0].(string)
			if !ok {
				return fmt.Errorf("%w: entry of the vocabulary without text", ErrFormat)
			}
			id++
			return t.put(id-1, text, false)
		})
	}
	return fmt.Errorf("%w: the vocabulary is neither a map nor a list", ErrFormat)
}

// component is a decoder or a pre-tokenizer; it may be a sequence of others.
type component struct {
	Type          string      `json:"type"`
	Replacement   string      `json:"replacement"` // Metaspace
	Prefix        string      `json:"prefix"`      // WordPiece
	Suffix        string      `json:"suffix"`      // BPEDecoder
	Content       string      `json:"content"`     // Replace
	Pattern       pattern     `json:"pattern"`     // Replace
	Decoders      []component `json:"decoders"`
	Pretokenizers []component `json:"pretokenizers"`
}

// pattern is {"String": "x"} or {"Regex": "x"}; other components have other things
// of this name.
type pattern struct{ text string }

func (p *pattern) UnmarshalJSON(b []byte) error {
	var v struct{ String string }
	if json.Unmarshal(b, &v) == nil {
		p.text = v.String
	}
	return nil
}

// walk calls f for a component and all within it.
func (c *component) walk(depth int, f func(*component)) {
	if depth == 0 {
		return
	}
	f(c)
	for i := range c.Decoders {
		c.Decoders[i].walk(depth-1, f)
	}
	for i := range c.Pretokenizers {
		c.Pretokenizers[i].walk(depth-1, f)
	}
}

// findStyle finds out how the vocabulary writes text: by the decoder, which turns
// it back, else by the pre-tokenizer or the model.
func (t *Table) findStyle(kind string, dec, pre *component) {
	prefix := t.affix
	t.affix = ""
	look := func(c *component) {
		switch c.Type {
		case "ByteFallback":
			t.byteFallback = true
		case "ByteLevel":
			t.style = byteLevel
		case "Metaspace":
			if t.style == plain {
				t.style, t.space = metaspace, c.Replacement
			}
		case "Replace":
			if t.style == plain && c.Content == " " && c.Pattern.text != "" {
				t.style, t.space = metaspace, c.Pattern.text
			}
		case "WordPiece":
			if t.style == plain {
				t.style, t.affix = wordPiece, c.Prefix
			}
		case "BPEDecoder":
			if t.style == plain && c.Suffix != "" {
				t.style, t.affix = endOfWord, c.Suffix
			}
		}
	}
	dec.walk(maxDepth, look)
	if t.style == plain {
		pre.walk(maxDepth, look)
	}
	if t.style == plain && kind == "WordPiece" {
		t.style, t.affix = wordPiece, prefix
	}
	if t.style == metaspace && t.space == "" {
		t.space = "\u2581"
	}
	if t.style == wordPiece && t.affix == "" {
		t.affix = "##"
	}
}

// object reads a JSON object: f reads the value of each key.
func object(d *json.Decoder, f func(key string) error) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("%w: no object where one is expected", ErrFormat)
	}
	return members(d, f)
}

func members(d *json.Decoder, f func(key string) error) error {
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("%w: key of an object is no string", ErrFormat)
		}
		if err := f(key); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func array(d *json.Decoder, f func() error) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}
	if tok == nil {
		return nil
	}
	if tok != json.Delim('[') {
		return fmt.Errorf("%w: no list where one is expected", ErrFormat)
	}
	return elements(d, f)
}

func elements(d *json.Decoder, f func() error) error {
	for d.More() {
		if err := f(); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// skip reads over a value.
func skip(d *json.Decoder) error {
	depth := 0
	for {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth <= 0 {
			return nil
		}
	}
}

package sglang

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"inferspan/probes/pickle"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// Why a frame gives no message.
var (
	// ErrFrame: it is not a message of SGLang's processes to each other.
	ErrFrame = errors.New("not a message")
	// ErrVersion: MessagePack of a version whose order of fields is not known.
	ErrVersion = errors.New("order of fields of this version not known")
	// ErrFields: MessagePack with fields that the version does not have.
	ErrFields = errors.New("fields are not those of this version")
)

// Codec reads the frames that SGLang's processes send each other: pickles of any
// version (protocol 2 to 5) and the MessagePack of those that have it. Pickles
// name their fields; what names this build does not know is left out, what it
// looks for and does not find stays unknown.
//
// It keeps its memory from frame to frame and must be used by one goroutine at a time.
type Codec struct {
	version string
	table   fieldTable // nil if not known
	dec     pickle.Decoder
	tail    pickle.Decoder // for the end of a frame whose middle is missing
	msg     Message
	inner   []*pickle.Decoder // for pickles within MessagePack
	used    int               // of inner
	// words are names of fields and classes seen before, to save copies.
	words map[string]string
}

// NewCodec makes a Codec for the engine that e describes. The order of fields is
// the one read from the live process, else that of the version; if neither is known,
// it reads pickles only.
func NewCodec(e *target.Engine) (*Codec, error) {
	t, err := fieldsOf(e.Version)
	if err != nil {
		return nil, err
	}
	if len(e.Structs) > 0 {
		live := fieldTable{}
		maps.Copy(live, t)
		maps.Copy(live, e.Structs)
		t = live
	}
	return &Codec{version: e.Version, table: t, words: map[string]string{}}, nil
}

// isPickle tells a pickle from MessagePack by the first bytes: no message is an
// empty map.
func isPickle(b []byte) bool { return len(b) > 1 && b[0] == 0x80 && b[1] >= 2 && b[1] <= 5 }

func isMsgpackArray(b []byte) bool {
	return len(b) > 0 && (b[0]&0xf0 == 0x90 || b[0] == 0xdc || b[0] == 0xdd)
}

// extArray is the extension code of array.array in SGLang's MessagePack, which is
// its type code and its bytes. So are tensors (2) and arrays of numpy (3).
const extArray = 1

func isBuffer(code int8) bool { return code >= extArray && code <= 3 }

// root reads the frame's outermost value. partial says that bytes were missing
// and the value may lack what they had.
func (c *Codec) root(p *wire.Part) (v pickle.Value, partial bool, err error) {
	v, err = c.read(p.Head, p.Tail, p.Size)
	if errors.Is(err, pickle.ErrTruncated) && v.Kind() != pickle.Invalid {
		return v, true, nil
	}
	return v, false, err
}

// maxWords bounds the names that are kept: messages have some 300.
const maxWords = 1024

// word is a name as a string.
func (c *Codec) word(b []byte) string {
	if w, ok := c.words[string(b)]; ok {
		return w
	}
	w := string(b)
	if len(c.words) < maxWords {
		c.words[w] = w
	}
	return w
}

func (c *Codec) read(head, tail []byte, size uint32) (pickle.Value, error) {
	switch {
	case isPickle(head):
		return c.dec.Decode(head, tail, int(size))
	case isMsgpackArray(head):
		return c.dec.DecodeMsgpack(head, tail, int(size), isBuffer)
	}
	return pickle.Value{}, ErrFrame
}

// record is a struct or an instance on the wire.
type record struct {
	c      *Codec
	class  string
	fields pickle.Value // a dict, or with names a list
	names  []string
	skip   int // items of the list before the first field
}

// open finds the record in a value. class is what it is if it does not say so itself.
func (c *Codec) open(v pickle.Value, class string) (record, error) {
	switch v.Kind() {
	case pickle.Object:
		if v.NameIs("msgspec._utils", "rebuild") {
			_, name := v.Args().Index(0).Name()
			return record{c: c, class: c.word(name), fields: v.Args().Index(1)}, nil
		}
		state := v.State()
		if state.Kind() == pickle.Tuple { // (__dict__, slots)
			if state = state.Index(1); state.Kind() != pickle.Dict {
				state = v.State().Index(0)
			}
		}
		_, name := v.Name()
		return record{c: c, class: c.word(name), fields: state}, nil
	case pickle.Dict:
		return record{c: c, class: class, fields: v}, nil
	case pickle.List:
		r := record{c: c, class: class, fields: v}
		if tag, ok := v.Index(0).Text(); ok && (class == "" || string(tag) == class) {
			r.class, r.skip = c.word(tag), 1
		}
		if c.table == nil {
			return r, fmt.Errorf("%w: %s", ErrVersion, c.version)
		}
		r.names = c.table[r.class]
		if r.names != nil && v.Len()-r.skip > len(r.names) {
			return r, ErrFields
		}
		return r, nil
	}
	return record{}, ErrFrame
}

// each hands over the fields by name.
func (r *record) each(f func(name string, key, v pickle.Value)) {
	if r.fields.Kind() == pickle.List {
		if r.names == nil {
			return
		}
		i := -r.skip
		for v := range r.fields.Items() {
			if i >= 0 && i < len(r.names) {
				f(r.names[i], pickle.Value{}, v)
			}
			i++
		}
		return
	}
	for k, v := range r.fields.Pairs() {
		if name, ok := k.Text(); ok {
			f(r.c.word(name), k, v)
		}
	}
}

// unwrap reads the pickle in a PickleWrapper; other values are returned as they are.
func (c *Codec) unwrap(v pickle.Value) pickle.Value {
	out, _ := c.unwrapped(v)
	return out
}

// unwrapped is unwrap that says which decoder read it, nil if none.
func (c *Codec) unwrapped(v pickle.Value) (pickle.Value, *pickle.Decoder) {
	if v.Kind() != pickle.List || v.Len() != 2 || !v.Index(0).Is("PickleWrapper") {
		return v, nil
	}
	b, ok := v.Index(1).Bytes()
	if !ok {
		return pickle.Value{}, nil
	}
	if c.used == len(c.inner) {
		c.inner = append(c.inner, new(pickle.Decoder))
	}
	d := c.inner[c.used]
	c.used++
	out, err := d.Decode(b, nil, len(b))
	if err != nil {
		return pickle.Value{}, nil
	}
	return out, d
}

// resume reads the fields at the end of a frame whose middle is missing; invalid
// if they cannot be told for sure. Fields are found by their names, which a pickle
// spells out where they come first.
func (c *Codec) resume(p *wire.Part) (fields pickle.Value, at int) {
	if !isPickle(p.Head) {
		return pickle.Value{}, 0
	}
	tries := 0
	for i := 0; i+2 < len(p.Tail) && tries < maxResumes; i++ {
		name, ok := fieldName(p.Tail[i:])
		if !ok || !knownFields[name] {
			continue
		}
		tries++
		v, err := c.tail.DecodeTail(p.Tail[i:], int(p.Size)-len(p.Tail)+i)
		if err != nil {
			continue
		}
		for k := range v.Pairs() {
			if k.Kind() != pickle.String {
				return pickle.Value{}, 0
			}
		}
		return v, i
	}
	return pickle.Value{}, 0
}

// maxResumes bounds the places looked at. A place that is not the right one is
// within a value, of which most have less than this many known names in them.
const maxResumes = 64

// fieldName is the name that a SHORT_BINUNICODE with a MEMOIZE after it has.
func fieldName(b []byte) (name string, ok bool) {
	const shortBinUnicode, memoize = 0x8c, 0x94
	if b[0] != shortBinUnicode {
		return "", false
	}
	end := 2 + int(b[1])
	if len(b) <= end || b[end] != memoize {
		return "", false
	}
	return string(b[2:end]), true
}

// kindOf is the kind of a message by its class, in the spellings of all versions.
func kindOf(class string) (k Kind, batch bool) {
	switch class {
	case "TokenizedGenerateReqInput":
		return KindGenerate, false
	case "TokenizedEmbeddingReqInput":
		return KindEmbedding, false
	case "BatchTokenizedGenerateReqInput":
		return KindGenerate, true
	case "BatchTokenizedEmbeddingReqInput":
		return KindEmbedding, true
	case "BatchTokenIDOutput", "BatchTokenIDOut":
		return KindTokens, true
	case "BatchStrOutput", "BatchStrOut":
		return KindTexts, true
	case "BatchEmbeddingOutput", "BatchEmbeddingOut":
		return KindEmbeddings, true
	case "AbortReq":
		return KindAbort, false
	}
	return KindOther, false
}

// wrapper tells whether a class only carries another message, in its field obj,
// for one of several tokenizer workers.
func wrapper(class string) bool {
	return strings.HasPrefix(class, "MultiTokenizer") && strings.HasSuffix(class, "Wrapper")
}

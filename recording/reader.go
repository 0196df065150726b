package recording

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

// Reader reads a recording. It is not safe for concurrent use.
type Reader struct {
	r       *bufio.Reader
	dec     *zstd.Decoder
	meta    Meta
	off     int64  // of the next block
	comp    []byte // reused
	raw     []byte // reused
	recs    []byte // rest of the current block of records
	records uint64
	err     error
}

// NewReader reads the header and the meta block. The error is ErrFormat for a
// file that is no recording or is too new.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	var h [headerLen]byte
	if _, err := io.ReadFull(br, h[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: shorter than its header", ErrFormat)
		}
		return nil, fmt.Errorf("reading the recording: %w", err)
	}
	if [8]byte(h[:8]) != magic {
		return nil, fmt.Errorf("%w: no recording header", ErrFormat)
	}
	if v := le.Uint32(h[8:]); v == 0 || v > Version {
		return nil, fmt.Errorf("%w: format version %d, this build reads up to %d", ErrFormat, v, Version)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRaw), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("preparing decompression: %w", err)
	}
	rd := &Reader{r: br, dec: dec, off: int64(headerLen)}
	t, err := rd.block()
	if err == io.EOF {
		return nil, rd.fault(ErrTruncated, "no first block")
	}
	if err != nil {
		return nil, err
	}
	if t != blockMeta {
		return nil, rd.fault(ErrCorrupt, "the first block is of type %d", t)
	}
	if err := json.Unmarshal(rd.raw, &rd.meta); err != nil {
		return nil, rd.fault(ErrCorrupt, "meta block: %v", err)
	}
	return rd, nil
}

// Meta says how the recording was made.
func (r *Reader) Meta() Meta { return r.meta }

// Next returns the next item, or io.EOF after a complete recording. An error
// wraps ErrTruncated or ErrCorrupt when the file is damaged; it is returned
// again by every later call.
func (r *Reader) Next() (Item, error) {
	for {
		if r.err != nil {
			return Item{}, r.err
		}
		if len(r.recs) > 0 {
			n, k := binary.Uvarint(r.recs)
			if k <= 0 || n > uint64(len(r.recs)-k) {
				return Item{}, r.fault(ErrCorrupt, "record length in a block of records")
			}
			rec := r.recs[k : k+int(n) : k+int(n)]
			r.recs = r.recs[k+int(n):]
			r.records++
			return Item{Record: rec}, nil
		}
		t, err := r.block()
		if err == io.EOF {
			return Item{}, r.fault(ErrTruncated, "no last block")
		}
		if err != nil {
			return Item{}, err
		}
		switch t {
		case blockRecords:
			r.recs = r.raw
		case blockEngine:
			e := new(target.Engine)
			if err := json.Unmarshal(r.raw, e); err != nil {
				return Item{}, r.fault(ErrCorrupt, "facts: %v", err)
			}
			return Item{Engine: e}, nil
		case blockTokenizer:
			if len(r.raw) < 4 {
				return Item{}, r.fault(ErrCorrupt, "tokenizer block of %d bytes", len(r.raw))
			}
			return Item{Tokenizer: &Tokenizer{Engine: signal.EngineID(le.Uint32(r.raw)), JSON: append([]byte(nil), r.raw[4:]...)}}, nil
		case blockEnd:
			var e End
			if err := json.Unmarshal(r.raw, &e); err != nil {
				return Item{}, r.fault(ErrCorrupt, "last block: %v", err)
			}
			if e.Records != r.records {
				return Item{}, r.fault(ErrCorrupt, "%d records, the last block says %d", r.records, e.Records)
			}
			if _, err := r.r.ReadByte(); err != io.EOF {
				return Item{}, r.fault(ErrCorrupt, "bytes after the last block")
			}
			r.err = io.EOF
		}
	}
}

// block reads the next block into r.raw.
func (r *Reader) block() (blockType, error) {
	var h [blockLen]byte
	if n, err := io.ReadFull(r.r, h[:]); err != nil {
		if n == 0 && err == io.EOF {
			return 0, io.EOF
		}
		return 0, r.readFault(err)
	}
	size, rawSize := le.Uint32(h[1:]), le.Uint32(h[5:])
	// zstd does not grow data by more than a small constant.
	if rawSize > maxRaw || uint64(size) > uint64(rawSize)+uint64(rawSize)/64+1024 {
		return 0, r.fault(ErrCorrupt, "block of %d bytes holding %d", size, rawSize)
	}
	comp, err := readN(r.r, r.comp[:0], int(size))
	r.comp = comp
	if err != nil {
		return 0, r.readFault(err)
	}
	if crc32.Update(crc32.Checksum(h[:9], castTab), castTab, comp) != le.Uint32(h[9:]) {
		return 0, r.fault(ErrCorrupt, "checksum")
	}
	if cap(r.raw) < int(rawSize) {
		r.raw = make([]byte, 0, rawSize)
	}
	raw, err := r.dec.DecodeAll(comp, r.raw[:0])
	if err != nil || len(raw) != int(rawSize) {
		return 0, r.fault(ErrCorrupt, "block does not unpack to %d bytes: %v", rawSize, err)
	}
	r.raw = raw
	r.off += int64(blockLen) + int64(size)
	return blockType(h[0]), nil
}

// readN appends n bytes from r, growing step by step so that a false length
// costs no memory.
func readN(r io.Reader, dst []byte, n int) ([]byte, error) {
	const step = 1 << 20
	for n > 0 {
		k := min(n, step)
		at := len(dst)
		if cap(dst) < at+k {
			dst = append(make([]byte, 0, max(2*cap(dst), at+k)), dst...)
		}
		dst = dst[:at+k]
		if m, err := io.ReadFull(r, dst[at:]); err != nil {
			return dst[:at+m], err
		}
		n -= k
	}
	return dst, nil
}

func (r *Reader) readFault(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.fault(ErrTruncated, "in the middle of a block")
	}
	r.err = fmt.Errorf("reading the recording at byte %d: %w", r.off, err)
	return r.err
}

func (r *Reader) fault(kind error, format string, args ...any) error {
	r.err = fmt.Errorf("%w at byte %d: %s", kind, r.off, fmt.Sprintf(format, args...))
	return r.err
}

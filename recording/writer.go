package recording

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// Writer writes a recording. It is not safe for concurrent use. After an error
// every later call returns the same error.
type Writer struct {
	w       io.Writer
	enc     *zstd.Encoder
	raw     []byte // records of the block being filled
	out     []byte // reused for the block being written
	rec     []byte // reused for the record being encoded
	records uint64
	bytes   int64
	err     error
}

// NewWriter writes the header and meta to w. The caller keeps w and closes it
// after Close.
func NewWriter(w io.Writer, meta Meta) (*Writer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("preparing compression: %w", err)
	}
	rw := &Writer{w: w, enc: enc}
	rw.write(le.AppendUint32(magic[:len(magic):len(magic)], Version))
	rw.json(blockMeta, meta)
	return rw, rw.err
}

// Engine stores facts about an engine; records that need them come after it.
func (w *Writer) Engine(e *target.Engine) error {
	w.flush()
	w.json(blockEngine, e)
	return w.err
}

// Tokenizer stores an engine's token table.
func (w *Writer) Tokenizer(t Tokenizer) error {
	w.flush()
	w.block(blockTokenizer, append(le.AppendUint32(nil, uint32(t.Engine)), t.JSON...))
	return w.err
}

// Record stores one record.
func (w *Writer) Record(r *event.Record) error {
	if w.err != nil {
		return w.err
	}
	w.rec = event.Append(w.rec[:0], r)
	w.raw = binary.AppendUvarint(w.raw, uint64(len(w.rec)))
	w.raw = append(w.raw, w.rec...)
	w.records++
	if len(w.raw) >= blockTarget {
		w.flush()
	}
	return w.err
}

// Flush hands everything written so far to the underlying writer.
func (w *Writer) Flush() error {
	w.flush()
	return w.err
}

// Close writes the last block. It does not close the underlying writer.
func (w *Writer) Close() error {
	w.flush()
	w.json(blockEnd, End{Records: w.records})
	w.enc.Close()
	return w.err
}

// Size is the number of bytes and records written so far.
func (w *Writer) Size() (bytes int64, records uint64) { return w.bytes, w.records }

func (w *Writer) flush() {
	if len(w.raw) > 0 {
		w.block(blockRecords, w.raw)
		w.raw = w.raw[:0]
	}
}

func (w *Writer) json(t blockType, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		w.fail(fmt.Errorf("encoding a block: %w", err))
		return
	}
	w.block(t, b)
}

func (w *Writer) block(t blockType, raw []byte) {
	if w.err != nil {
		return
	}
	if len(raw) > maxRaw {
		w.fail(fmt.Errorf("writing the recording: block of %d bytes is over the limit of %d", len(raw), maxRaw))
		return
	}
	w.out = append(w.out[:0], byte(t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	w.out = w.enc.EncodeAll(raw, w.out)
	le.PutUint32(w.out[1:], uint32(len(w.out)-blockLen))
	le.PutUint32(w.out[5:], uint32(len(raw)))
	sum := crc32.Update(crc32.Checksum(w.out[:9], castTab), castTab, w.out[blockLen:])
	le.PutUint32(w.out[9:], sum)
	w.write(w.out)
}

func (w *Writer) write(b []byte) {
	if w.err != nil {
		return
	}
	n, err := w.w.Write(b)
	w.bytes += int64(n)
	if err != nil {
		w.fail(fmt.Errorf("writing the recording: %w", err))
	}
}

func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// Package recording stores what a live run saw, so that it can be replayed
// through the same code: the kernel records as they came, and the facts about
// the target that decoding needs.
//
// A file is a header followed by blocks. The header is an 8-byte magic, in the
// manner of PNG so that a text-mode transfer shows, and a version. A block is
//
//	type u8 | length u32 | raw length u32 | CRC-32C u32 | payload
//
// with little-endian integers; the payload is zstd-compressed, its checksum
// covers the compressed bytes and the three fields before it. The last block is of type end:
// a file without it was cut off. Block types that a reader does not know are
// skipped, so that additions do not break old readers; a change of meaning
// raises the version.
package recording

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

// Version is the version of the format that this package writes and the newest it reads.
const Version = 1

var magic = [8]byte{0x89, 'I', 'S', 'R', '\r', '\n', 0x1a, '\n'}

const (
	headerLen = len(magic) + 4
	blockLen  = 1 + 4 + 4 + 4

	// blockTarget is the raw size at which a block of records is closed. Bigger
	// blocks compress little better and lose more when a file is cut.
	blockTarget = 256 << 10
	// maxRaw bounds what a damaged or hostile file can make a reader allocate.
	// The largest block is a tokenizer table.
	maxRaw = 64 << 20
	// MaxTokenizer is the largest tokenizer.json that can be stored.
	MaxTokenizer = maxRaw - 4
)

type blockType uint8

const (
	blockMeta      blockType = 1 // Meta as JSON, once, first
	blockEngine    blockType = 2 // target.Engine as JSON
	blockRecords   blockType = 3 // records, each after its length as a uvarint
	blockEnd       blockType = 4 // End as JSON, once, last
	blockTokenizer blockType = 5 // Tokenizer
)

// Meta says how a recording was made.
type Meta struct {
	Tool     string    `json:"tool"`    // version of inferspan
	Started  time.Time `json:"started"` // wall clock
	Kernel   string    `json:"kernel,omitempty"`
	Arch     string    `json:"arch,omitempty"`
	Redacted bool      `json:"redacted"`
	Content  bool      `json:"content"` // the kernel copied whole responses
	Note     string    `json:"note,omitempty"`
}

// End closes a recording.
type End struct {
	Records uint64 `json:"records"`
}

// Tokenizer is the token table of an engine, in the form of its tokenizer.json.
type Tokenizer struct {
	Engine signal.EngineID
	JSON   []byte
}

// Errors of a reader. Both are wrapped with the offset; everything before the
// fault has been returned by then.
var (
	// ErrTruncated: the file ends in the middle, or without its last block.
	ErrTruncated = errors.New("recording is cut off")
	// ErrCorrupt: a checksum or a structure is wrong.
	ErrCorrupt = errors.New("recording is corrupt")
	// ErrFormat: not a recording, or one of a newer version.
	ErrFormat = errors.New("not a readable recording")
)

var (
	le      = binary.LittleEndian
	castTab = crc32.MakeTable(crc32.Castagnoli)
)

// Item is one thing that a recording holds, in the order of the run. Exactly one field is set.
type Item struct {
	Engine    *target.Engine
	Tokenizer *Tokenizer
	Record    []byte // one encoded record; valid until the next call
}

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"inferspan/bpf/event"
	"inferspan/probes/tokenizer"
	"inferspan/recording"
)

// Replay feeds a recording to a pipeline and ends it with Detach. After a
// damaged part everything before it has been fed, and the error says where the
// fault is. Problems that stop nothing are returned as notes.
func Replay(r *recording.Reader, p *Pipeline) (notes []string, err error) {
	defer p.Detach()
	var rec event.Record
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return notes, nil
		}
		if err != nil {
			return notes, err
		}
		switch {
		case it.Engine != nil:
			if err := p.Engine(it.Engine); err != nil {
				notes = append(notes, err.Error())
			}
		case it.Tokenizer != nil:
			t, err := tokenizer.Load(bytes.NewReader(it.Tokenizer.JSON))
			if err != nil {
				notes = append(notes, fmt.Sprintf("token texts are not available: %v", err))
				continue
			}
			p.Tokenizer(t)
		default:
			if err := event.Decode(it.Record, &rec); err != nil {
				return notes, fmt.Errorf("%w: %v", recording.ErrCorrupt, err)
			}
			if err := p.Record(&rec); err != nil {
				return notes, err
			}
		}
	}
}

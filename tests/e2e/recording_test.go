package e2e

import (
	"errors"
	"io"
	"os"
	"testing"

	"inferspan/bpf/event"
	"inferspan/probes/target"
	"inferspan/recording"
)

// readRecording hands over the engines and the records of a recording, in order. A record
// is valid during the call.
func readRecording(t *testing.T, file string, engine func(*target.Engine) error, record func(*event.Record) error) {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, err := recording.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	var rec event.Record
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		switch {
		case err != nil:
		case it.Engine != nil:
			err = engine(it.Engine)
		case it.Record != nil:
			if err = event.Decode(it.Record, &rec); err == nil {
				err = record(&rec)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

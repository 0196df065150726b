package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"inferspan/correlate/signal"
)

func TestTraceLevel(t *testing.T) {
	for _, tc := range []struct {
		name, env, flag string
		want            signal.Opt[int]
		err             string
	}{
		{name: "neither"},
		{name: "environment", env: "1", want: signal.Some(1)},
		{name: "flag", flag: "4", want: signal.Some(4)},
		{name: "flag over environment", env: "1", flag: "0", want: signal.Some(0)},
		{name: "flag over bad environment", env: "x", flag: "2", want: signal.Some(2)},
		{name: "too high", flag: "5", err: "--trace-level 5: want 0 to 4"},
		{name: "no number", env: "all", err: "SGLANG_TRACE_LEVEL all: want 0 to 4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(traceLevelEnv, tc.env)
			var d detail
			c := &cobra.Command{}
			d.flags(c)
			if tc.flag != "" {
				if err := c.Flags().Set("trace-level", tc.flag); err != nil {
					t.Fatal(err)
				}
			}
			o, err := d.options()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || o.TraceLevel != tc.want {
				t.Errorf("%v, %v, want %v", o.TraceLevel, err, tc.want)
			}
		})
	}
}

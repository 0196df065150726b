// Command workload plays named scenarios against a server of the OpenAI API and
// writes its log of what happened as JSON lines.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"inferspan/tests/workload"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "workload: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	base := flag.String("url", "http://127.0.0.1:8000", "base `URL` of the server")
	names := flag.String("scenarios", "", "`names` to play, separated by commas (default: all for --server)")
	server := flag.String("server", "generate", "`kinds` of server it is, separated by commas: generate, tools, small-kv, pooling")
	seed := flag.Uint64("seed", 1, "seed of the plan")
	count := flag.Int("count", 0, "requests per scenario (default: the scenario's own)")
	conc := flag.Int("concurrency", 0, "connections at a time (default: the scenario's own)")
	trace := flag.Bool("trace", false, "give every request a traceparent")
	plain := flag.Bool("plain", false, "give no request a traceparent or x-request-id")
	out := flag.String("log", "", "`file` for the log (default: standard output)")
	list := flag.Bool("list", false, "list the scenarios and end")
	loop := flag.Duration("for", 0, "play the scenarios again, with other seeds, until this much time is over")
	limit := flag.Duration("limit", 10*time.Minute, "end after this long")
	flag.Parse()

	if *list {
		for _, s := range workload.Scenarios() {
			fmt.Printf("%-12s %-9s %s\n", s.Name, s.Needs, s.About)
		}
		return nil
	}
	var chosen []*workload.Scenario
	if *names == "" {
		for _, s := range workload.Scenarios() {
			if strings.Contains(","+*server+",", ","+string(s.Needs)+",") {
				chosen = append(chosen, s)
			}
		}
	} else {
		for name := range strings.SplitSeq(*names, ",") {
			s := workload.Find(name)
			if s == nil {
				return fmt.Errorf("no scenario %q, see --list", name)
			}
			chosen = append(chosen, s)
		}
	}

	w := os.Stdout
	if *out != "" {
		f, err := os.Create(*out)
		if err != nil {
			return err
		}
		defer f.Close()
		w = f
	}
	buf := bufio.NewWriter(w)
	enc := json.NewEncoder(buf)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	bad := 0
	began := time.Now()
	for round := uint64(0); round == 0 || time.Since(began) < *loop; round++ {
		n, err := play(ctx, chosen, workload.Options{BaseURL: *base, Seed: *seed + round, Count: *count, Concurrency: *conc, Trace: *trace, Plain: *plain}, enc)
		bad += n
		if err != nil {
			return err
		}
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("writing the log: %w", err)
	}
	if bad > 0 {
		return fmt.Errorf("%d requests did not go as planned", bad)
	}
	return nil
}

// play plays the scenarios once and returns how many requests did not go as planned.
func play(ctx context.Context, chosen []*workload.Scenario, o workload.Options, enc *json.Encoder) (bad int, err error) {
	for _, s := range chosen {
		start := time.Now()
		log, err := workload.Run(ctx, s, o)
		for i := range log {
			if err := enc.Encode(&log[i]); err != nil {
				return bad, fmt.Errorf("writing the log: %w", err)
			}
		}
		lines := workload.Check(log)
		bad += len(lines)
		fmt.Fprintf(os.Stderr, "%-12s %3d requests in %.1f s\n", s.Name, len(log), time.Since(start).Seconds())
		for _, l := range lines {
			fmt.Fprintln(os.Stderr, "  "+l)
		}
		if err != nil {
			return bad, fmt.Errorf("playing %s: %w", s.Name, err)
		}
	}
	return bad, nil
}

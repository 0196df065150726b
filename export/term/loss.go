package term

import (
	"strings"

	"inferspan/correlate/signal"
)

// everyday are the reasons that come with normal traffic or with the first
// moments of a run, by what they mean: nothing is missing that the spans do not say.
var everyday = map[string]string{
	"truncated":             "long payloads copied in part (over 256 KiB)",
	"message_cut":           "long messages read in part",
	"message_missing_start": "messages that were under way when the run began",
	"message_exit":          "messages that were under way when their process ended",
	"http_orphan_response":  "responses to requests that came before the run",
}

// Losses says in a line what was lost of that which should have been seen, e.g.
// "lost: ring full 3"; "" for nothing.
func Losses(lost []signal.LossCount) string {
	var parts []string
	for _, l := range lost {
		if l.N > 0 && everyday[l.Reason] == "" {
			parts = append(parts, words(l.Reason)+" "+num(l.N))
		}
	}
	if parts == nil {
		return ""
	}
	return "lost: " + strings.Join(parts, ", ")
}

// lossLine is the line of a summary for a count.
func lossLine(l signal.LossCount) (line string, harmless bool) {
	if what := everyday[l.Reason]; what != "" {
		return num(l.N) + " " + what, true
	}
	return plural(int(l.N), "record") + " lost: " + words(l.Reason), false
}

func words(reason string) string { return Clean(strings.ReplaceAll(reason, "_", " ")) }

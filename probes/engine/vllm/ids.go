package vllm

import (
	"strings"

	"inferspan/correlate/signal"
)

// suffixLen is the length of the random suffix of an internal id: a dash and
// eight characters (InputProcessor.assign_request_id).
const suffixLen = 9

// endpoint prefixes of the ids that the HTTP front end makes, with the rule that
// leads from an engine request back to the id in the HTTP response.
var idPrefixes = []struct {
	prefix string
	item   itemRule
}{
	{"chatcmpl-", itemConversation},
	{"cmpl-", itemDash},
	{"resp_", itemTurn},
	{"embd-", itemDash},
	{"classify-", itemDash},
	{"score-", itemDash},
	{"rerank-", itemDash},
	{"pooling-", itemDash},
	{"pool-", itemDash},
	{"generative-scoring-", itemDash},
	{"generate-tokens-", itemNone},
}

// itemRule says how the parts of one HTTP request are numbered in engine ids.
type itemRule uint8

const (
	itemNone         itemRule = iota
	itemDash                  // "-<i>" on every one, or "-prompt-<i>-chunk-<j>"
	itemTurn                  // "_<j>" on every one since requests carry external ids
	itemConversation          // "_<k>" only if the request has several conversations
)

// ids derives the ids of a request from what its message says. external is "" if
// the message has none, suffix tells whether this engine's version has external
// ids at all.
func ids(internal, external string, hasExternal bool) (ext, response string, child signal.Opt[int]) {
	base := internal
	switch {
	case external != "":
		ext, base = external, external
		if k, rest, ok := cutNumber(internal, '_'); ok && !strings.HasPrefix(internal, external) && strings.HasPrefix(rest, external) {
			child = signal.Some(k)
		}
	default:
		ext = internal
		if k, rest, ok := cutNumber(internal, '_'); ok && (hasIDPrefix(rest) || isNumber(rest)) {
			child, base = signal.Some(k), rest
		}
		// An engine of a version with external ids that sends none has made up
		// the suffix all the same.
		if hasExternal && len(base) > suffixLen && base[len(base)-suffixLen] == '-' && isHex(base[len(base)-suffixLen+1:]) {
			base = base[:len(base)-suffixLen]
		}
	}
	return ext, responseID(base, hasExternal), child
}

// responseID gives the id in the HTTP response, "" for ids that no HTTP request has.
func responseID(base string, hasExternal bool) string {
	for _, p := range idPrefixes {
		u, ok := strings.CutPrefix(base, p.prefix)
		if !ok {
			continue
		}
		switch p.item {
		case itemDash:
			if v, ok := trimNumber(u, "-chunk-"); ok {
				u, _ = trimNumber(v, "-prompt-")
			} else {
				u, _ = trimNumber(u, "-")
			}
		case itemTurn:
			if hasExternal {
				u, _ = trimNumber(u, "_")
			}
		case itemConversation:
			// An id from a client may itself end in a number.
			if v, ok := trimNumber(u, "_"); ok && (len(v) == 16 || len(v) == 32) && isHex(v) {
				u = v
			}
		}
		return p.prefix + u
	}
	if isNumber(base) { // the class LLM counts its requests
		return ""
	}
	return base
}

func hasIDPrefix(s string) bool {
	for _, p := range idPrefixes {
		if strings.HasPrefix(s, p.prefix) {
			return true
		}
	}
	return false
}

// cutNumber splits "<number><sep><rest>".
func cutNumber(s string, sep byte) (n int, rest string, ok bool) {
	i := strings.IndexByte(s, sep)
	if i <= 0 || i > 9 || !isNumber(s[:i]) {
		return 0, s, false
	}
	for _, c := range s[:i] {
		n = 10*n + int(c-'0')
	}
	return n, s[i+1:], true
}

// trimNumber removes "<sep><number>" from the end.
func trimNumber(s, sep string) (string, bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 || !isNumber(s[i+len(sep):]) {
		return s, false
	}
	return s[:i], true
}

func isNumber(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return s != ""
}

package target

import (
	"regexp"
	"strings"
)

// blank replaces a secret.
const blank = "***"

var (
	// Names of options, and of keys in JSON arguments, whose value is a secret. Only
	// the last words count: --ssl-keyfile and --max-num-batched-tokens are none.
	secretName = `(?:api[-_]?keys?|(?:hf|auth|access|bearer|secret|hub)[-_]?token|token|secret|secret[-_]?key|access[-_]?key|password|passwd|credentials?)`

	secretFlag = regexp.MustCompile(`(?i)^--?(?:[a-z0-9.]+[-_])*` + secretName + `$`)
	secretEnv  = regexp.MustCompile(`(?i)^((?:[a-z0-9]+_)*` + secretName + `)=.`)
	secretJSON = regexp.MustCompile(`(?i)("[a-z0-9_-]*` + secretName + `"\s*:\s*)"(?:[^"\\]|\\.)*"`)
	// user:password@ in a URL.
	secretURL = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@]+@`)
	// Keys that can be told by their form: Hugging Face, OpenAI and alike.
	secretForm = regexp.MustCompile(`\b(?:hf|sk|api)[-_][A-Za-z0-9_-]{16,}`)
)

// Blank returns a copy of a command line with the values of secrets blanked:
// those of options that name a key, a token or a password, after "=" or in the
// following arguments, and what looks like one anywhere.
func Blank(args []string) []string {
	if args == nil {
		return nil
	}
	out := make([]string, len(args))
	hide := false
	for i, a := range args {
		flag := strings.HasPrefix(a, "-")
		switch {
		case flag:
			name, _, hasValue := strings.Cut(a, "=")
			secret := secretFlag.MatchString(name)
			// --api-key takes any number of values: up to the next option.
			hide = secret && !hasValue
			if secret && hasValue {
				a = name + "=" + blank
			}
		case hide:
			a = blank
		}
		if m := secretEnv.FindStringSubmatch(a); m != nil {
			a = m[1] + "=" + blank
		}
		a = secretJSON.ReplaceAllString(a, `${1}"`+blank+`"`)
		a = secretURL.ReplaceAllString(a, "${1}"+blank+"@")
		out[i] = secretForm.ReplaceAllString(a, blank)
	}
	return out
}

// flags reads the options of a vLLM command line. It stands in for the live
// interpreter only where that cannot be read.
type flags struct{ args []string }

// value returns the value of the first option among the names, given as
// "--model X", "--model=X" or with underscores.
func (f flags) value(names ...string) (string, bool) {
	vals := f.values(names...)
	if len(vals) == 0 {
		return "", false
	}
	return vals[0], true
}

// values returns the values of an option that takes several.
func (f flags) values(names ...string) []string {
	for i, a := range f.args {
		name, val, has := strings.Cut(a, "=")
		if !oneOf(name, names) {
			continue
		}
		if has {
			return []string{val}
		}
		var out []string
		for _, v := range f.args[i+1:] {
			if strings.HasPrefix(v, "-") {
				break
			}
			out = append(out, v)
		}
		return out
	}
	return nil
}

// has reports whether an option without a value is given.
func (f flags) has(name string) bool {
	for _, a := range f.args {
		if oneOf(a, []string{name}) {
			return true
		}
	}
	return false
}

func oneOf(arg string, names []string) bool {
	if !strings.HasPrefix(arg, "--") {
		return false
	}
	arg = strings.ReplaceAll(arg, "_", "-")
	for _, n := range names {
		if arg == n {
			return true
		}
	}
	return false
}

// model returns the model that "vllm serve MODEL" or "--model MODEL" names.
func (f flags) model() (string, bool) {
	if m, ok := f.value("--model"); ok {
		return m, true
	}
	for i, a := range f.args {
		if a == "serve" && i+1 < len(f.args) && !strings.HasPrefix(f.args[i+1], "-") {
			return f.args[i+1], true
		}
	}
	return "", false
}

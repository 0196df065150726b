package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"strings"
)

// The signals, as they are spelled in the names of variables.
const (
	traces  = "TRACES"
	metrics = "METRICS"
	logs    = "LOGS"
)

// defaultEndpoint is the one of the OTLP specification. The Go exporters would
// take https on their own.
const defaultEndpoint = "http://localhost:4318"

// lookup returns the value of the signal's own variable or else of the general
// one, and the name it was found under.
func lookup(signal, suffix string) (name, value string) {
	for _, n := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_" + suffix, "OTEL_EXPORTER_OTLP_" + suffix} {
		if v := strings.TrimSpace(os.Getenv(n)); v != "" {
			return n, v
		}
	}
	return "", ""
}

// enabled tells whether a signal is exported: OTEL_TRACES_EXPORTER and its like
// switch one off with "none".
func enabled(signal string) (bool, error) {
	name := "OTEL_" + signal + "_EXPORTER"
	switch v := strings.TrimSpace(os.Getenv(name)); v {
	case "", "otlp":
		return true, nil
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("%s is %q: only otlp and none are supported", name, v)
	}
}

// checkEnv finds the settings that the libraries would log and then ignore.
func checkEnv(signal string) error {
	if name, v := lookup(signal, "PROTOCOL"); v != "" && v != "http/protobuf" {
		return fmt.Errorf("%s is %q: only http/protobuf is supported", name, v)
	}
	if name, v := lookup(signal, "COMPRESSION"); v != "" && v != "gzip" && v != "none" {
		return fmt.Errorf("%s is %q: only gzip and none are supported", name, v)
	}
	if name, file := lookup(signal, "CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return fmt.Errorf("reading %s: no certificate in %s", name, file)
		}
	}
	certName, cert := lookup(signal, "CLIENT_CERTIFICATE")
	_, key := lookup(signal, "CLIENT_KEY")
	switch {
	case cert == "" && key == "":
	case cert == "" || key == "":
		return errors.New("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other")
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return fmt.Errorf("reading %s: %w", certName, err)
		}
	}
	return nil
}

// endpoint returns the URL for a signal if it must be given to the library, ""
// if the library is to find it in the environment.
func endpoint(signal, option string) (string, error) {
	suffix := "/v1/" + strings.ToLower(signal)
	if option != "" {
		u, err := parseEndpoint("endpoint", option)
		if err != nil {
			return "", err
		}
		u.Path = path.Join("/", u.Path, suffix)
		return u.String(), nil
	}
	if name, v := lookup(signal, "ENDPOINT"); v != "" {
		_, err := parseEndpoint(name, v)
		return "", err
	}
	return defaultEndpoint + suffix, nil
}

func parseEndpoint(name, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil && !strings.HasPrefix(s, "http://") && !strings.HasPrefix(s, "https://"):
		// "127.0.0.1:4318", of which the parser says something about colons.
		return nil, fmt.Errorf("%s is %q: it must begin with http:// or https://", name, s)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", name, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%s is %q: it must begin with http:// or https://", name, s)
	case u.Host == "":
		return nil, fmt.Errorf("%s is %q: it has no host", name, s)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%s is %q: it must have no query", name, s)
	}
	return u, nil
}

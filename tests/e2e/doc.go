// Package e2e tests the built program against a real engine: what it exports is
// compared with what the engine and the client say themselves.
//
// The tests run with INFERSPAN_E2E=1, as root, after "make build engine".
package e2e

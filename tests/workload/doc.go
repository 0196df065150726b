// Package workload plays named scenarios against a server of the OpenAI API and
// keeps an exact log of what it sent, when, and what came back. The log is the
// truth that tests compare a tracer with.
//
// The plan of a scenario, that is what is sent on which connection, depends on
// the seed only; when things happen depends on the server. All text in the
// requests is made from the words in words.go.
package workload

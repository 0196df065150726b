// Package sglang knows SGLang: its messages, and what its processes hold.
package sglang

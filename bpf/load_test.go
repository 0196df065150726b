package bpf

import "testing"

func TestLoad(t *testing.T) {
	o, err := Load(Options{})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
}

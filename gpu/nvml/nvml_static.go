//go:build !cgo

package nvml

// Open loads the library. Without cgo it cannot: the error is ErrNoCgo.
func Open() (Library, error) { return nil, ErrNoCgo }

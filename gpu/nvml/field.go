//go:build cgo

package nvml

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// fieldCount reads the value of a field that is a count.
func fieldCount(f *nvml.FieldValue) (uint64, error) {
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(f.Value[:])), nil
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(f.Value[:]), nil
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_INT:
		return 0, fmt.Errorf("reading field %d: a signed value where a count was expected", f.FieldId)
	}
	return 0, fmt.Errorf("reading field %d: values of type %d are not understood", f.FieldId, f.ValueType)
}

//go:build !amd64

package governor

import "reflect"

//go:noinline
func probed() { sink++ }

var sink int

func probedPC() uintptr { return reflect.ValueOf(probed).Pointer() }

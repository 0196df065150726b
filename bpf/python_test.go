package bpf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
)

// TestCaptureLayout compares the structs of python.h with those of package capture:
// number, places and widths of the fields, and their names where these say the same.
func TestCaptureLayout(t *testing.T) {
	spec, err := loadTracer()
	if err != nil {
		t.Fatal(err)
	}
	for name, typ := range map[string]reflect.Type{
		"py_process": reflect.TypeFor[capture.Process](), "py_code": reflect.TypeFor[capture.Code](), "py_name": reflect.TypeFor[capture.Name](),
		"py_op": reflect.TypeFor[capture.Op](), "py_plan": reflect.TypeFor[capture.Plan](),
	} {
		s := cStruct(t, spec.Types, name)
		if int(s.Size) != int(typ.Size()) || len(s.Members) != typ.NumField() {
			t.Errorf("struct %s has %d bytes in %d fields, %s has %d in %d", name, s.Size, len(s.Members), typ, typ.Size(), typ.NumField())
			continue
		}
		for i, m := range s.Members {
			f := typ.Field(i)
			size, err := btf.Sizeof(m.Type)
			if err != nil {
				t.Fatal(err)
			}
			if int(m.Offset.Bytes()) != int(f.Offset) || size != int(f.Type.Size()) {
				t.Errorf("struct %s: %s is %d bytes at %d, %s is %d at %d", name, m.Name, size, m.Offset.Bytes(), f.Name, f.Type.Size(), f.Offset)
			}
			c, g := strings.ToLower(strings.ReplaceAll(m.Name, "_", "")), strings.ToLower(f.Name)
			if alias := map[string]string{"yes": "true", "no": "false", "opscount": "opcount", "frozensettype": "frozensettype"}[c]; alias != "" {
				c = alias
			}
			if c != g {
				t.Errorf("struct %s: field %d is %s in C and %s in Go", name, i, m.Name, f.Name)
			}
		}
	}
}

// TestCaptureEnums compares the numbers of C with the constants of package capture.
func TestCaptureEnums(t *testing.T) {
	spec, err := loadTracer()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]uint64{
		"capture_flags": {"CAPTURE_CUT": event.CaptureCut, "CAPTURE_RETURN": event.CaptureReturn},
		"capture_tag": {"CAPTURE_INT": uint64(capture.TagInt), "CAPTURE_FLOAT": uint64(capture.TagFloat), "CAPTURE_BOOL": uint64(capture.TagBool),
			"CAPTURE_STR1": uint64(capture.TagStr1), "CAPTURE_STR2": uint64(capture.TagStr2), "CAPTURE_STR4": uint64(capture.TagStr4),
			"CAPTURE_NONE": uint64(capture.TagNone), "CAPTURE_ADDR": uint64(capture.TagAddr), "CAPTURE_MISSING": uint64(capture.TagMissing),
			"CAPTURE_ITEMS": uint64(capture.TagItems)},
		"capture_missing": {"MISSING_FAULT": uint64(capture.MissingFault), "MISSING_FRAME": uint64(capture.MissingFrame), "MISSING_UNSET": uint64(capture.MissingUnset),
			"MISSING_TYPE": uint64(capture.MissingType), "MISSING_NAME": uint64(capture.MissingName), "MISSING_LIMIT": uint64(capture.MissingLimit),
			"MISSING_BAD": uint64(capture.MissingBad), "MISSING_STALE": uint64(capture.MissingStale)},
		"py_form": {"PY_FORM_DICT": uint64(capture.FormDict), "PY_FORM_POINTERS": uint64(capture.FormPointers), "PY_FORM_TAGGED": uint64(capture.FormTagged),
			"PY_FORM_INLINE": uint64(capture.FormInline)},
		"py_op_code": {"PY_FRAME": uint64(capture.OpFrame), "PY_LOCAL": uint64(capture.OpLocal), "PY_ATTR": uint64(capture.OpAttr),
			"PY_INDEX": uint64(capture.OpIndex), "PY_KEY": uint64(capture.OpKey), "PY_VALUE": uint64(capture.OpValue), "PY_LEN": uint64(capture.OpLen),
			"PY_ADDR": uint64(capture.OpAddr), "PY_ITEMS": uint64(capture.OpItems), "PY_SKIP": uint64(capture.OpSkip),
			"PY_PUT_OFF": uint64(capture.OpPutOff)},
		"py_items": {"PY_ITEM_KEY": capture.ItemKey, "PY_ITEM_VALUE": capture.ItemValue, "PY_ITEM_ATTRS": capture.ItemAttrs, "PY_ITEM_LEN": capture.ItemLen, "PY_ITEM_BODY": capture.ItemBody},
		"py_skip": {"PY_SKIP_SAME": capture.SkipSame, "PY_SKIP_IS": capture.SkipIs, "PY_SKIP_ISNOT": capture.SkipIsNot, "PY_SKIP_NONE": capture.SkipNone,
			"PY_SKIP_SET": capture.SkipSet, "PY_SKIP_DONE": capture.SkipDone},
	}
	for name, values := range want {
		var e *btf.Enum
		if err := spec.Types.TypeByName(name, &e); err != nil {
			t.Errorf("enum %s in the object: %v", name, err)
			continue
		}
		if len(e.Values) != len(values) {
			t.Errorf("enum %s has %d members, the test knows %d", name, len(e.Values), len(values))
		}
		for _, v := range e.Values {
			if got, ok := values[v.Name]; !ok || got != v.Value {
				t.Errorf("enum %s: %s is %d in C, %d in Go", name, v.Name, v.Value, got)
			}
		}
	}
	if n := spec.Maps["py_plans"].MaxEntries; n&(n-1) != 0 {
		t.Errorf("%d plans, want a power of two", n)
	}
}

// TestStack computes the deepest stack of each program as kernels before 6.13 do: the
// frames of a chain of calls, each rounded up to 32 bytes, may take 512 together. The
// kernel that this runs on may be more generous.
func TestStack(t *testing.T) {
	spec, err := loadTracer()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		frame := map[string]int{}
		calls := map[string][]string{}
		fn := ""
		for i, in := range p.Instructions {
			if s := in.Symbol(); s != "" {
				fn = s
			}
			used := 0
			class := in.OpCode.Class()
			switch {
			case class == asm.LdXClass && in.Src == asm.RFP, class.IsStore() && in.Dst == asm.RFP:
				used = -int(in.Offset)
			case class.IsALU() && in.OpCode.ALUOp() == asm.Add && in.OpCode.Source() == asm.ImmSource && i > 0:
				// The address of a variable: r = r10, r += -n; other code may stand between.
				for _, before := range p.Instructions[max(0, i-8):i] {
					if before.OpCode.Class().IsALU() && before.OpCode.ALUOp() == asm.Mov && before.Src == asm.RFP && before.Dst == in.Dst {
						used = -int(in.Constant)
					}
				}
			}
			frame[fn] = max(frame[fn], used)
			if in.IsFunctionReference() {
				calls[fn] = append(calls[fn], in.Reference())
			}
		}
		var depth func(fn string, frames int) int
		depth = func(fn string, frames int) int {
			if frames > 8 {
				t.Errorf("program %s: more than 8 frames", name)
				return 0
			}
			deepest := 0
			for _, to := range calls[fn] {
				deepest = max(deepest, depth(to, frames+1))
			}
			return deepest + (max(frame[fn], 1)+31)/32*32
		}
		d := depth(p.Instructions[0].Symbol(), 1)
		t.Logf("program %s: %d bytes of stack", name, d)
		if d > 512 {
			t.Errorf("program %s: %d bytes of stack, frames %v", name, d, frame)
		}
	}
}

package python

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// zooPlain are attributes of the zoo that have a plain value.
var zooPlain = []struct {
	path string
	want any
}{
	{"none", nil}, {"true", true}, {"false", false},
	{"ints", []any{int64(0), int64(1), int64(-1), int64(1<<30 - 1), int64(1 << 30), int64(-1 << 30), int64(1 << 60), int64(-1 << 62), int64(1<<63 - 1), int64(-1 << 63)}},
	{"strs", []any{"", "ascii", "café", "привет", "\U0001f600 face"}},
	{"surrogate", "a\ufffdb"},
	{"long_str", strings.Repeat("x", 5000)},
	{"data", []byte("\x00\x01bytes\xff")}, {"empty_bytes", []byte{}},
	{"tup", []any{int64(1), []any{"nested", nil}, []any{}}},
	{"lst", []any{int64(1), "two", 3.0, []byte("4")}},
	{"unicode_dict", map[string]any{"a": int64(1), "b": "two"}},
	{"empty_dict", map[string]any{}},
	{"moved", map[string]any{"a": int64(0), "b": int64(1), "c": int64(2), "d": int64(3)}},
	{"counts", map[string]any{"n": int64(1), "m": int64(2)}},
	{"int_dict", []Entry{{int64(1), "one"}, {int64(-5), "minus five"}, {int64(1 << 40), "large"}, {int64(7), "seven"}}},
	{"nested_dict", []Entry{{int64(1), map[string]any{"x": []any{int64(1), []any{int64(2)}}}}, {nil, 2.5}, {"s", []byte("b")}}},
	{"a_deque", []any{int64(1), "two", 3.0}}, {"empty_deque", []any{}}, {"sub_deque", []any{int64(7)}},
	{"last_ten", []any{int64(990), int64(991), int64(992), int64(993), int64(994), int64(995), int64(996), int64(997), int64(998), int64(999)}},
	{"lst.append.__name__", "append"}, {"bound.__self__.x", int64(1)},
	{"point.y", int64(1)}, {"slot_point.a", "last"},
	{"ordered", map[string]any{"x": int64(1), "y": int64(2)}},
	{"frozen", []any{"f"}},
	{"sub_str", "sub café"}, {"sub_str.note", "on a str"},
	{"sub_int", int64(-7)}, {"sub_int.note", "on an int"},
	{"sub_float", 2.5},
	{"sub_tuple", []any{int64(1), int64(2)}}, {"sub_tuple.note", "on a tuple"},
	{"plain.x", int64(1)}, {"plain.y", "why"}, {"plain.shadowed", "instance"}, {"plain.class_attr", "from class"},
	{"Plain.shadowed", "class"}, {"Plain.class_attr", "from class"},
	{"derived.x", int64(2)}, {"derived.extra", "from derived"}, {"derived.class_attr", "from class"}, {"Derived.class_attr", "from class"},
	{"with_dict.x", int64(3)}, {"with_dict.late", "added"},
	{"combined.x", int64(4)}, {"combined.own", true},
	{"many.x", int64(5)}, {"many.attr0", int64(0)}, {"many.attr59", int64(59)},
	{"deleted.x", int64(6)}, {"deleted.shadowed", "instance"},
	{"slots.a", "slot a"}, {"slots.b", int64(2)},
	{"slots_dict.a", "slot a"}, {"slots_dict.c", "in dict"},
	{"namespace.p", int64(1)}, {"namespace.q", "q"},
	{"WithMeta.own", "own"}, {"WithMeta.meta_attr", "from metaclass"},
	{"red", int64(1)}, {"low", int64(10)},
	{"Level.HIGH", int64(-20)},
}

var zooErrors = []struct {
	path string
	want error
}{
	{"absent", ErrNotFound},
	{"plain.absent", ErrNotFound},
	{"deleted.y", ErrNotFound},
	{"slots.unset", ErrNotFound},
	{"slots.c", ErrNotFound},
	{"plain.prop", ErrComputed},
	{"WithMeta.computed", ErrComputed},
	{"none.absent", ErrNotFound},
	{"lst.__class__", ErrComputed},
}

// checkZoo compares what is read with what zoo.py made.
func checkZoo(t *testing.T, in *Interp) {
	t.Helper()
	main, err := in.Module("__main__")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range zooPlain {
		v, err := main.Path(strings.Split(c.path, ".")...)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		got, err := v.Plain(1000)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s = %#v, %v; want %#v", c.path, got, err, c.want)
		}
	}
	for _, c := range zooErrors {
		if v, err := main.Path(strings.Split(c.path, ".")...); !errors.Is(err, c.want) {
			t.Errorf("%s = %v, %v; want error %v", c.path, v.Addr(), err, c.want)
		}
	}
	get := func(name string) Value {
		v, err := main.Path(strings.Split(name, ".")...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return v
	}

	for _, name := range []string{"huge", "tiny"} {
		if n, err := get(name).Int(); !errors.Is(err, ErrLimit) {
			t.Errorf("%s = %d, %v; want %v", name, n, err, ErrLimit)
		}
	}
	floats, err := get("floats").List(10)
	if err != nil || len(floats) != 4 {
		t.Fatalf("floats: %d elements, %v", len(floats), err)
	}
	for i, want := range []string{"0", "-0.5", "1e+308", "+Inf"} {
		if f, err := floats[i].Float(); err != nil || fmt.Sprint(f) != want {
			t.Errorf("floats[%d] = %v, %v; want %s", i, f, err, want)
		}
	}
	for _, name := range []string{"cycle", "deep"} {
		if _, err := get(name).Plain(10000); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v, want %v", name, err, ErrLimit)
		}
	}

	big := get("big_dict")
	if n, err := big.Len(); n != 1000 || err != nil {
		t.Errorf("len(big_dict) = %d, %v", n, err)
	}
	if v, err := big.Key("k777"); err != nil {
		t.Errorf("big_dict[k777]: %v", err)
	} else if n, err := v.Int(); n != 777 || err != nil {
		t.Errorf("big_dict[k777] = %d, %v", n, err)
	}
	if _, err := big.Key("k1000"); !errors.Is(err, ErrNotFound) {
		t.Errorf("big_dict[k1000]: %v, want %v", err, ErrNotFound)
	}
	if _, err := big.Items(999); !errors.Is(err, ErrLimit) {
		t.Errorf("items of big_dict up to 999: %v, want %v", err, ErrLimit)
	}
	if items, err := big.Items(1000); err != nil || len(items) != 1000 {
		t.Errorf("items of big_dict: %d, %v", len(items), err)
	}
	items, err := get("general_dict").Items(10)
	if err != nil || len(items) != 3 {
		t.Fatalf("items of general_dict: %d, %v", len(items), err)
	}
	kinds := []Kind{items[0].Key.Kind(), items[1].Key.Kind(), items[2].Key.Kind()}
	if !slices.Equal(kinds, []Kind{Str, Int, Tuple}) {
		t.Errorf("keys of general_dict are of kinds %v", kinds)
	}
	if _, err := get("general_dict").Key("a"); err != nil {
		t.Errorf("general_dict[a]: %v", err)
	}

	for name, want := range map[string]int64{"a_set": 1 + 2 + 3, "big_set": 499 * 500 / 2} {
		elems, err := get(name).List(1000)
		var sum int64
		for _, e := range elems {
			n, err := e.Int()
			if err != nil {
				t.Errorf("element of %s: %v", name, err)
			}
			sum += n
		}
		if err != nil || sum != want {
			t.Errorf("sum(%s) = %d, %v; want %d", name, sum, err, want)
		}
	}

	checkCollections(t, get)
	for class, want := range map[string]string{"Colour": "RED=1 BLUE=[2]", "Level": "LOW=10 HIGH=-20", "Flag": "A=1 B=2"} {
		items, err := get(class).EnumMembers(10)
		var got []string
		for _, it := range items {
			key, _ := it.Key.Str()
			val, err := it.Value.Plain(10)
			if err != nil {
				t.Errorf("%s.%s: %v", class, key, err)
			}
			got = append(got, fmt.Sprintf("%s=%v", key, val))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("members of %s: %s, %v; want %s", class, strings.Join(got, " "), err, want)
		}
	}

	vars, err := get("plain").Vars(10)
	var names []string
	for _, it := range vars {
		s, _ := it.Key.Str()
		names = append(names, s)
	}
	if err != nil || !slices.Equal(names, []string{"x", "y", "shadowed"}) {
		t.Errorf("vars(plain) = %v, %v", names, err)
	}
	if v, err := get("lst").Index(1); err != nil {
		t.Errorf("lst[1]: %v", err)
	} else if s, err := v.Str(); s != "two" || err != nil {
		t.Errorf("lst[1] = %q, %v", s, err)
	}
	if _, err := get("lst").Index(4); !errors.Is(err, ErrNotFound) {
		t.Errorf("lst[4]: %v, want %v", err, ErrNotFound)
	}
	if _, err := get("lst").Str(); !errors.Is(err, ErrType) {
		t.Errorf("lst as a str: %v, want %v", err, ErrType)
	}
	if !get("derived").IsInstance(get("Plain")) || get("plain").IsInstance(get("Derived")) {
		t.Error("IsInstance is wrong about Derived and Plain")
	}
	if n := get("derived").TypeName(); n != "Derived" {
		t.Errorf("type of derived is %q", n)
	}
	if n, err := get("Derived").Name(); n != "Derived" || err != nil {
		t.Errorf("name of Derived is %q, %v", n, err)
	}
	if v, err := in.Path("made.by.hand", "attr"); err != nil {
		t.Errorf("module made.by.hand: %v", err)
	} else if s, _ := v.Str(); s != "of made" {
		t.Errorf("module made.by.hand has attr %q", s)
	}
	if _, err := main.Attr("record"); err == nil {
		checkRecord(t, main)
	}
	checkFrames(t, in)
}

// keys joins the keys of items that are all str.
func keys(t *testing.T, items []Item, err error) string {
	t.Helper()
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, it := range items {
		s, err := it.Key.Str()
		if err != nil {
			t.Error(err)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

// checkCollections looks at deques, dicts with an order or a default, dataclasses,
// members of an Enum and bound methods.
func checkCollections(t *testing.T, get func(string) Value) {
	t.Helper()
	big := get("big_deque")
	if n, err := big.Len(); n != 999 || err != nil || big.Kind() != Deque {
		t.Errorf("big_deque is of kind %v and has %d elements, %v", big.Kind(), n, err)
	}
	elems, err := big.List(999)
	if err != nil || len(elems) != 999 {
		t.Errorf("big_deque: %d elements, %v", len(elems), err)
	}
	for i, e := range elems {
		if n, err := e.Int(); n != int64(i+1000-76)%1000 || err != nil {
			t.Errorf("big_deque[%d] = %d, %v", i, n, err)
			break
		}
	}
	if _, err := big.List(998); !errors.Is(err, ErrLimit) {
		t.Errorf("998 elements of big_deque: %v, want %v", err, ErrLimit)
	}
	if v, err := big.Index(500); err != nil {
		t.Errorf("big_deque[500]: %v", err)
	} else if n, err := v.Int(); n != 424 || err != nil {
		t.Errorf("big_deque[500] = %d, %v", n, err)
	}
	if _, err := big.Index(999); !errors.Is(err, ErrNotFound) {
		t.Errorf("big_deque[999]: %v, want %v", err, ErrNotFound)
	}
	for k, want := range map[int64]error{1: nil, -5: nil, 1 << 40: nil, 7: nil, 2: ErrNotFound} {
		if _, err := get("int_dict").IntKey(k); !errors.Is(err, want) {
			t.Errorf("int_dict[%d]: %v, want %v", k, err, want)
		}
	}
	for path, want := range map[string]string{"moved": "d a c b", "ordered": "x y", "counts": "n m"} {
		items, err := get(path).Items(10)
		if got := keys(t, items, err); got != want {
			t.Errorf("%s has the keys %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"point": "y x tags late", "slot_point": "y x a", "slots": "a b", "slots_dict": "a b c", "namespace": "p q",
		"plain": "x y shadowed", "deleted": "x shadowed", "combined": "x y shadowed own", "with_dict": "x y shadowed late",
	} {
		items, err := get(path).Attrs(10)
		if got := keys(t, items, err); got != want {
			t.Errorf("%s has the attributes %q, want %q", path, got, want)
		}
	}
	if _, err := get("many").Attrs(20); !errors.Is(err, ErrLimit) {
		t.Errorf("20 attributes of many: %v, want %v", err, ErrLimit)
	}
	name, value, err := get("red").Enum()
	if n, verr := value.Int(); name != "RED" || n != 1 || err != nil || verr != nil {
		t.Errorf("red is %q = %d, %v, %v", name, n, err, verr)
	}
	name, value, err = get("both").Enum()
	if n, verr := value.Int(); name != "" && name != "A|B" || n != 3 || err != nil || verr != nil {
		t.Errorf("both is %q = %d, %v, %v", name, n, err, verr)
	}
	for _, path := range []string{"plain", "Colour", "low.value"} {
		if v, err := get("Level").in.Path("__main__", strings.Split(path, ".")...); err == nil {
			if _, _, err := v.Enum(); !errors.Is(err, ErrType) {
				t.Errorf("%s as a member of an Enum: %v, want %v", path, err, ErrType)
			}
		}
	}
	fn, self, err := get("bound").Method()
	if err != nil || !self.Is(get("plain")) || !fn.Is(get("Plain.method")) {
		t.Errorf("bound is of function %#x and object %#x, %v", fn.Addr(), self.Addr(), err)
	}
	if _, _, err := get("lst").Method(); !errors.Is(err, ErrType) {
		t.Errorf("lst as a method: %v, want %v", err, ErrType)
	}
	if c, err := get("bound").Code(); err != nil || c.Name != "method" || len(c.Locals) != 1 || c.Locals[0].Name != "self" {
		t.Errorf("code of bound: %+v, %v", c, err)
	}
	if c, err := get("c_bound").Callable(); err != nil || c.Name != "append" || c.Kind != Builtin {
		t.Errorf("C function of c_bound: %+v, %v", c, err)
	}
}

// checkRecord looks at a msgspec.Struct, where the interpreter has msgspec.
func checkRecord(t *testing.T, main Value) {
	t.Helper()
	for path, want := range map[string]any{
		"record.name": "rec", "record.n": int64(5), "record.ratio": 0.5,
		"Record.__struct_fields__": []any{"name", "n", "ratio", "tags", "kind"},
	} {
		v, err := main.Path(strings.Split(path, ".")...)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got, err := v.Plain(100); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %#v, %v; want %#v", path, got, err, want)
		}
	}
	v, err := main.Path("Record", "__struct_defaults__")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := v.Len(); n != 4 || err != nil {
		t.Errorf("Record has %d defaults, %v; want 4", n, err)
	}
}

func checkFrames(t *testing.T, in *Interp) {
	t.Helper()
	frames, err := in.MainFrames()
	if err != nil {
		t.Errorf("frames: %v", err)
		return
	}
	i := slices.IndexFunc(frames, func(f Frame) bool { return f.Name == "serve" })
	if i < 0 || !slices.ContainsFunc(frames[i:], func(f Frame) bool { return f.Name == "<module>" }) {
		t.Errorf("no frames serve and <module> in %v", frames)
		return
	}
	v, err := frames[i].Local("local_text")
	if err != nil {
		t.Error(err)
	} else if s, err := v.Str(); s != "of serve" || err != nil {
		t.Errorf("local_text = %q, %v", s, err)
	}
	if v, err := frames[i].Local("captured"); err != nil {
		t.Error(err)
	} else if v.Kind() != List {
		t.Errorf("captured is a %s", v.TypeName())
	}
	if _, err := frames[i].Local("absent"); !errors.Is(err, ErrNotFound) {
		t.Errorf("absent local: %v, want %v", err, ErrNotFound)
	}
}

"""Writes pickles of this interpreter and what is in them, as JSON lines.

python3.X zoo.py > zoo-3.X.jsonl

What is in them is found with Python's own machine (pickle._Unpickler) and
stand-ins for everything that a pickle names.
"""

import array
import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import io
import json
import pickle
import struct
import sys
import uuid
import zlib


@dataclasses.dataclass
class Point:
    x: int
    y: object = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class Slots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a, self.b = 1, [2]


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Flags(enum.IntFlag):
    A = 1
    B = 2


class MyList(list):
    pass


class MyDict(dict):
    pass


class NewEx:
    def __new__(cls, *, a):
        return object.__new__(cls)

    def __getnewargs_ex__(self):
        return (), {"a": 1}


class Reduced:
    def __reduce__(self):
        return (Point, (1, 2), {"z": 3}, iter([4, 5]), iter([("k", 6)]))


Named = collections.namedtuple("Named", "a b")


def zoo():
    yield "none", None
    yield "bools", [True, False]
    yield "ints", [0, 1, 255, 256, 65535, 65536, -1, -128, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)]
    yield "longs", [2**63, 2**64, -(2**63) - 1, 2**200, -(2**2100)]
    yield "floats", [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 5e-324]
    yield "strs", ["", "a", "\u00e9", "\u4f60\u597d", "\U0001f600", "x" * 255, "y" * 256, "z" * 70000, "\ud800"]
    yield "bytes", [b"", b"a", bytes(range(256)), b"q" * 70000]
    yield "bytearray", bytearray(b"abc")
    yield "empty", [[], (), {}, set(), frozenset()]
    yield "tuples", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), tuple(range(300)), ((),)]
    yield "list1", [5]
    yield "list1000", [7] * 1000
    yield "list1001", [8] * 1001
    yield "list2500", [i % 9 * 7777 for i in range(2500)]
    yield "mixed", [1, "a", 2, None, [3, [4, (5.5, "b")]]]
    yield "dicts", {"a": 1, 2: "b", (1, 2): None, None: {"nested": {"deep": True}}}
    yield "dict1500", {i: None for i in range(1001)}
    yield "sets", [{1, 2, "a"}, frozenset({3, "b"}), {frozenset({1})}]
    shared = ["s"]
    yield "shared", [shared, shared, {"k": shared}]
    cycle = [1]
    cycle.append(cycle)
    yield "cycle", cycle
    self_dict = {}
    self_dict["me"] = [self_dict]
    yield "self-dict", self_dict
    self_tuple = ([],)
    self_tuple[0].append(self_tuple)
    yield "self-tuple", self_tuple
    yield "global", [Point, len, collections.OrderedDict]
    yield "dataclass", Point(1, [Point(2)])
    yield "frozen", Frozen(4)
    yield "slots", Slots()
    yield "enum", [Color.RED, Color.BLUE, Flags.A | Flags.B]
    yield "subclasses", [MyList([1, 2]), MyDict(a=1), collections.OrderedDict(b=2), collections.defaultdict(list, {"c": [1]})]
    yield "deque", collections.deque([1, 2, 3], 5)
    yield "counter", collections.Counter("aab")
    yield "namedtuple", Named(1, "x")
    yield "newobj-ex", NewEx(a=1)
    yield "reduced", Reduced()
    yield "array", [array.array("q", [1, 2, 3]), array.array("d", [0.5]), array.array("i")]
    yield "datetime", [datetime.datetime(2026, 1, 2, 3, 4, 5), datetime.timedelta(1, 2)]
    yield "decimal", [decimal.Decimal("1.25"), fractions.Fraction(1, 3)]
    yield "uuid", uuid.UUID(int=5)
    yield "complex", 1 + 2j
    yield "range", range(1, 10, 2)
    yield "exception", ValueError("bad", 3)
    deep = []
    for _ in range(150):
        deep = [deep]
    yield "deep", deep


class Obj:
    def __init__(self, callee, args, kwargs=None):
        self.callee, self.args, self.kwargs = callee, args, kwargs
        self.state = self
        self.items, self.pairs = [], {}

    def __setstate__(self, state):
        self.state = state

    def append(self, x):
        self.items.append(x)

    def extend(self, xs):
        self.items.extend(xs)

    def __setitem__(self, k, v):
        self.pairs[k] = v

    def __call__(self, *args):
        return Obj(self, args)

    def __hash__(self):
        return id(self)


class Name:
    def __init__(self, module, name):
        self.module, self.name = module, name
        self.__new__ = lambda cls, *a, **k: Obj(self, a, k or None)

    def __call__(self, *args):
        return Obj(self, args)


class Unpickler(pickle._Unpickler):
    def find_class(self, module, name):
        return Name(module, name)

    def persistent_load(self, pid):
        return ...


Unpickler.dispatch = dict(pickle._Unpickler.dispatch)


def load_newobj_ex(self):
    kwargs, args, cls = self.stack.pop(), self.stack.pop(), self.stack.pop()
    self.append(Obj(cls, args, kwargs))


Unpickler.dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex


def show(v, path=()):
    if id(v) in path:
        return "^"
    path = (*path, id(v))

    def many(vs):
        return ", ".join(show(x, path) for x in vs)

    def pairs(d):
        return "{" + ", ".join(show(k, path) + ": " + show(x, path) for k, x in d.items()) + "}"

    if v is ...:
        return "opaque"
    if v is None or isinstance(v, bool):
        return str(v)
    if isinstance(v, int):
        return str(v) if -(2**63) <= v < 2**63 else "long:" + pickle.encode_long(v).hex()
    if isinstance(v, float):
        return "float:" + struct.pack(">d", v).hex()
    if isinstance(v, str):
        return "str:" + v.encode("utf-8", "surrogatepass").hex()
    if isinstance(v, bytearray):
        return "bytearray:" + v.hex()
    if isinstance(v, bytes):
        return "bytes:" + v.hex()
    if isinstance(v, list):
        return "[" + many(v) + "]"
    if isinstance(v, tuple):
        return "(" + many(v) + ")"
    if isinstance(v, dict):
        return pairs(v)
    if isinstance(v, (set, frozenset)):
        return type(v).__name__ + "{" + ", ".join(sorted(show(x, path) for x in v)) + "}"
    if isinstance(v, Name):
        return "<" + v.module + " " + v.name + ">"
    out = "call " + show(v.callee, path) + show(v.args, path)
    if v.kwargs is not None:
        out += "**" + show(v.kwargs, path)
    if v.state is not v:
        out += " state=" + show(v.state, path)
    if v.items:
        out += " items=" + show(v.items, path)
    if v.pairs:
        out += " pairs=" + show(v.pairs, path)
    return out


if __name__ == "__main__":
    for name, v in zoo():
        for protocol in range(2, 6):
            try:
                b = pickle.dumps(v, protocol)
            except (UnicodeEncodeError, pickle.PicklingError):
                continue
            want = show(Unpickler(io.BytesIO(b)).load())
            # Long ones are kept short by a hash.
            if len(want) > 2000:
                want = "sha256:" + hashlib.sha256(want.encode()).hexdigest()
            print(json.dumps({"name": name, "protocol": protocol, "pickle": base64.b64encode(zlib.compress(b, 9)).decode(), "want": want}))

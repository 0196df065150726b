# One of everything that the reader reads, as attributes of __main__. Prints a line
# when ready and keeps changing "moving" until its input ends.
import collections
import dataclasses
import enum
import sys
import threading
import types

none, true, false = None, True, False
ints = [0, 1, -1, 2**30 - 1, 2**30, -(2**30), 2**60, -(2**62), 2**63 - 1, -(2**63)]
huge = 2**63
tiny = -(2**63) - 1
floats = [0.0, -0.5, 1e308, float("inf")]
strs = ["", "ascii", "caf\xe9", "\u043f\u0440\u0438\u0432\u0435\u0442", "\U0001f600 face"]
surrogate = "a\ud800b"
long_str = "x" * 5000
data = b"\x00\x01bytes\xff"
empty_bytes = b""
tup = (1, ("nested", None), [])
lst = [1, "two", 3.0, b"4"]
cycle = []
cycle.append(cycle)
deep = []
for _ in range(100):
    deep = [deep]

unicode_dict = {"a": 1, "b": "two", "gone": 3}
del unicode_dict["gone"]
general_dict = {"a": 1, 2: "two", (3,): None}
big_dict = {"k%d" % i: i for i in range(1000)}
empty_dict = {}
ordered = collections.OrderedDict(x=1, y=2)
moved = collections.OrderedDict((c, i) for i, c in enumerate("abcd"))
moved.move_to_end("b")
moved.move_to_end("d", last=False)
counts = collections.defaultdict(int, n=1, m=2)
int_dict = {1: "one", -5: "minus five", 2**40: "large", True + 6: "seven"}
nested_dict = {1: {"x": [1, (2,)]}, None: 2.5, "s": b"b"}
a_deque = collections.deque([1, "two", 3.0])
empty_deque = collections.deque()
last_ten = collections.deque(range(1000), maxlen=10)
big_deque = collections.deque(range(1000))
big_deque.rotate(77)
big_deque.popleft()


class Deque(collections.deque):
    pass


sub_deque = Deque([7])
a_set = {1, 2, 3}
a_set.add(99)
a_set.discard(99)
frozen = frozenset(["f"])
big_set = set(range(500))


class Str(str):
    pass


class Int(int):
    pass


class Float(float):
    pass


class Tuple(tuple):
    pass


sub_str = Str("sub caf\xe9")
sub_str.note = "on a str"
sub_int = Int(-7)
sub_int.note = "on an int"
sub_float = Float(2.5)
sub_tuple = Tuple((1, 2))
sub_tuple.note = "on a tuple"


class Plain:
    class_attr = "from class"
    shadowed = "class"

    def __init__(self, n):
        self.x = n
        self.y = "why"
        self.shadowed = "instance"

    def method(self):
        return self.x

    @property
    def prop(self):
        return 1


class Derived(Plain):
    extra = "from derived"


plain = Plain(1)  # inline or split values
derived = Derived(2)
with_dict = Plain(3)
with_dict.__dict__["late"] = "added"  # materialises the dict
combined = Plain(4)
combined.__dict__ = dict(combined.__dict__, own=True)
many = Plain(5)
for i in range(60):
    setattr(many, "attr%d" % i, i)  # beyond what shared keys hold
deleted = Plain(6)
del deleted.y


class Slots:
    __slots__ = ("a", "b", "unset")

    def __init__(self):
        self.a, self.b = "slot a", 2


class SlotsAndDict(Slots):
    def __init__(self):
        super().__init__()
        self.c = "in dict"


slots = Slots()
slots_dict = SlotsAndDict()
namespace = types.SimpleNamespace(p=1, q="q")


class Meta(type):
    @property
    def computed(cls):
        return 1

    meta_attr = "from metaclass"


class WithMeta(metaclass=Meta):
    own = "own"


class Colour(enum.Enum):
    RED = 1
    BLUE = b"\x02"


class Level(enum.IntEnum):
    LOW = 10
    HIGH = -20


class Flag(enum.Flag):
    A = 1
    B = 2


red, low = Colour.RED, Level.LOW
both = Flag.A | Flag.B


@dataclasses.dataclass
class Point:
    y: int
    x: int = 2
    tags: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class SlotPoint:
    y: int
    x: int = 2
    a: str = "last"


point, slot_point = Point(1), SlotPoint(1)
point.late = "added"
bound = plain.method
c_bound = lst.append

module = types.ModuleType("made")
module.attr = "of made"
sys.modules["made.by.hand"] = module

try:
    import msgspec

    class Record(msgspec.Struct, omit_defaults=True):
        name: str
        n: int = 5
        ratio: float = 0.5
        tags: list = []
        kind: Colour = Colour.RED

    record = Record(name="rec")
except ImportError:
    pass


class Moving:
    pass


moving = Moving()
moving.text = ""
moving.numbers = []
moving.table = {}


def move():
    k = 0
    while True:
        k += 1
        moving.text = chr(97 + k % 26) * (k % 700)
        moving.numbers = list(range(k % 50))
        n = moving.numbers
        n.extend(range(len(n), len(n) + k % 40))
        moving.table = {"k%d" % i: i for i in range(k % 30)}
        if k % 64 == 0:
            moving.__dict__  # switches the way attributes are stored
        if k % 1000 == 0 and stop.wait(0):
            return


stop = threading.Event()


def serve():
    local_text = "of serve"
    captured = ["cell"]

    def inner():
        return captured

    print("ready", flush=True)
    sys.stdin.readline()
    if "move" in sys.argv:
        t = threading.Thread(target=move)
        t.start()
        print("moving", flush=True)
        sys.stdin.readline()
        stop.set()
        t.join()
    return inner, local_text


serve()

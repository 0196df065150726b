# Changes, makes and frees objects as fast as it can until its input ends. Whatever is
# read of them can be checked: values follow from their keys or from their neighbours,
# and most are never used twice. Attributes of __main__.c, see chaos_test.go.
import collections
import enum
import gc
import random
import sys
import threading
import time

sys.setswitchinterval(1e-4)


class Plain:
    def __init__(self, n):
        self.a = n
        self.b = 3 * n + 1
        self.name = "n%d" % n


class Slots:
    __slots__ = ("a", "b", "name")
    __init__ = Plain.__init__


class Wide(Plain):
    def __init__(self, n):
        for i in range(n % 40):
            setattr(self, "x%d" % i, i)
        super().__init__(n)


class Colour(enum.Enum):
    RED = 1001
    GREEN = 2002


class Container:
    pass


c = Container()
c.table = {}
c.same = {}
c.general = {}
c.ordered = collections.OrderedDict()
c.nested = {}
c.numbers = list(range(1000, 1064))
c.flip = [1] * 64
c.queue = []
c.deque = collections.deque()
c.ring = collections.deque(maxlen=100)
c.ints = set()
c.text = "0:"
c.wide_text = ""
c.number = 7
c.ratio = 0.5
c.data = b""
c.instance = Plain(1)
c.many = []
c.colour = Colour.RED


def table(n):
    t = {"k%d" % i: i * 7919 + 1000 for i in range(n % 50)}
    c.table = t
    for i in range(n % 17):
        t["late%d" % i] = i * 7919 + 1000
        t.pop("k%d" % (i * 2), None)


def same_table(n):
    # The same dict, and keys that are made at the places of others.
    if n % 13 == 0:
        c.same.clear()
    for i in range(n % 29):
        c.same["s%d" % (n + i)] = (n + i) * 31 + 500
    for k in list(c.same)[: n % 37]:
        del c.same[k]


def general(n):
    g = {}
    for i in range(n % 23):
        g[n * 1000 + i] = "v%d" % (n * 1000 + i)
        g[(n, i)] = n + i
    c.general = g


def ordered(n):
    o = c.ordered
    o["o%d" % n] = n * 3
    if o:
        o.move_to_end(next(iter(o)))
    while len(o) > n % 30:
        o.popitem(last=n % 2 == 0)


def nested(n):
    c.nested = {"n%d" % i: [i, {"sq": i * i + 300}, ("t%d" % i,)] for i in range(n, n + n % 9)}


def numbers(n):
    c.numbers[:] = range(n * 64, n * 64 + 64)


def flip(n):
    c.flip[:] = [1 + n % 2] * 64


def queue(n):
    q = c.queue
    q.extend(range(q[-1] + 1 if q else n * 1000, (q[-1] + 1 if q else n * 1000) + n % 30))
    for _ in range(n % 31):
        if q:
            q.pop(0)
    if q and n % 7 == 0:
        q.pop()
    if n % 50 == 0:
        c.queue = [n * 1000]


def deques(n):
    d = c.deque
    last = d[-1] + 1 if d else n * 1000
    d.extend(range(last, last + n % 90))
    for _ in range(n % 91):
        if d:
            d.popleft()
    if d and n % 5 == 0:
        d.pop()
    c.ring.append((c.ring[-1] if c.ring else n) + 1)


def ints(n):
    if n % 10 == 0:
        c.ints = set()
    c.ints.add(n * 97 + 5)
    c.ints.discard((n - 7) * 97 + 5)


def scalars(n):
    k = n % 700
    c.text = "%d:" % k + chr(97 + n % 26) * k
    c.wide_text = [chr(0xE9), chr(0x43F), chr(0x1F600)][n % 3] * (n % 300)
    c.number = (n * 1000003 + 7) << (n % 3 * 8)
    c.ratio = n + 0.5
    c.data = bytes([n % 256]) * (n % 400)
    c.colour = Colour.RED if n % 2 else Colour.GREEN


def instances(n):
    c.instance = [Plain, Slots, Wide][n % 3](n)
    if n % 11 == 0:
        c.instance.__class__ is Plain and c.instance.__dict__
    if n % 16 == 0:
        c.many = [[Plain, Slots, Wide][i % 3](i) for i in range(n, n + n % 12)]
    elif c.many:
        c.many.pop(n % len(c.many))


work = [table, same_table, general, ordered, nested, numbers, flip, queue, deques, ints, scalars, instances]
stop = threading.Event()


def run(jobs, seed):
    rnd = random.Random(seed)
    n = 1000
    while not stop.is_set():
        for _ in range(rnd.randrange(1, 60)):
            n += 1
            for job in jobs:
                job(n)
        if n % 500 < 5:
            gc.collect()
        time.sleep(rnd.choice((0, 0, 1e-5, 1e-4, 1e-3)))


threads = [threading.Thread(target=run, args=(work[i::2], i)) for i in range(2)]
for t in threads:
    t.start()
print("ready", flush=True)
sys.stdin.readline()
stop.set()
for t in threads:
    t.join()

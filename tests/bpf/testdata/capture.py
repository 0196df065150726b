"""Objects whose values the test knows: each step says on standard output, as JSON, what
a capture at its clock read must have. {"missing": reason} is a value that must not be
there. Usage: capture.py STEPS SEED"""
import asyncio
import collections
import ctypes
import dataclasses
import enum
import json
import os
import random
import sys
import threading
import time
import types  # so that the type of cells can be found

ODD = ["", "a", "req-0123456789abcdef", "caf\u00e9", "\u043f\u0440\u0438\u0432\u0435\u0442", "\U0001f600 face", "x" * 64]
INTS = [0, 1, -1, 7, 255, 256, 2**29, 2**30 - 1, 2**30, -(2**30), 2**31, 2**60 - 1, 2**60, -(2**61), 2**63 - 1, -(2**63) + 1]
LIMIT = {"missing": "too_large"}
write = threading.Lock()


class Level(enum.IntEnum):
    LOW = 3
    HIGH = 2**40


class Text(str):
    pass


class Plain:
    """Few attributes: values beside the instance, keys with the class."""

    def __init__(self, r):
        self.number = r.choice(INTS)
        self.ratio = r.random() * 10 ** r.randint(-300, 300)
        self.flag = r.random() < 0.5
        self.nothing = None
        self.text = r.choice(ODD)


class Wide:
    """More attributes than shared keys hold."""

    def __init__(self, r, n):
        for i in range(n):
            setattr(self, f"a{i}", i * 1000 + r.randint(0, 999))


class Slots:
    __slots__ = ("first", "second", "unset")

    def __init__(self, r):
        self.first = r.choice(INTS)
        self.second = r.choice(ODD)


class MoreSlots(Slots):
    __slots__ = ("third",)

    def __init__(self, r):
        super().__init__(r)
        self.third = r.random()


class SlotsAndDict(Slots):
    def __init__(self, r):
        super().__init__(r)
        self.fourth = r.choice(INTS)


@dataclasses.dataclass
class Output:
    tokens: dict
    total: int
    fresh: list
    done: set
    maybe: object = None


class Job:
    """An element of a list whose attributes have attributes."""

    def __init__(self, r, i):
        self.id = f"job-{i}"
        self.stats = Plain(r)
        if r.random() < 0.3:
            self.stats.__dict__
        self.wide = Wide(r, r.choice([8, 45])) if r.random() < 0.8 else None
        self.reason = r.choice([None, "stop", 0])
        self.ids = list(range(r.randint(0, 9)))
        self.stream = r.choice([True, False, 0, None])


class Queue(collections.deque):
    pass


class Error(Exception):
    """Its __dict__ is at a place that the class says."""


class Sub(dict):
    """A dict that also has attributes."""


def clock():
    return time.monotonic()


class Maker:
    def __init__(self, r, who):
        self.r = r
        self.who = who
        self.seq = 0
        self.plain = Plain(r)
        self.touched = Plain(r)
        self.touched.__dict__  # its attributes move into a dict
        self.extra = Plain(r)
        self.wide = Wide(r, 40)
        self.huge = Wide(r, 300)
        self.slots = Slots(r)
        self.more = MoreSlots(r)
        self.both = SlotsAndDict(r)
        self.error = Error("x")
        self.sub = Sub()
        self.sub.attr = 5
        self.table = {}
        self.general = {}
        self.gone = {f"k{i}": i for i in range(200)}
        self.queue, self.taken = Queue(), 0
        self.frozen = frozenset()

    def change(self):
        r = self.r
        self.seq += 1
        # Grow to 300 and shrink; deleted entries stay until the next growth.
        if r.random() < 0.5:
            for _ in range(r.randint(0, 60)):
                self.table[f"{self.who}-{r.randint(0, 999):03d}{r.choice(ODD[:5])}"] = r.choice(INTS)
            while len(self.table) > 300:
                del self.table[r.choice(list(self.table))]
        else:
            for k in r.sample(list(self.table), k=min(len(self.table), r.randint(0, 80))):
                del self.table[k]
        if r.random() < 0.05:
            self.table = {}
        self.general[r.randint(0, 50)] = r.choice(INTS)
        self.general[r.choice(ODD)] = r.choice([1.5, True, None, "v"])
        if len(self.general) > 40:
            self.general = {}
        self.gone = {f"k{i}": i for i in range(200)}
        for i in range(r.randint(150, 200)):
            del self.gone[f"k{i}"]
        # The same class, in all forms.
        self.plain = Plain(r)
        if r.random() < 0.3:
            self.plain.__dict__
        if r.random() < 0.3:
            del self.plain.number
            self.plain.number = r.choice(INTS)
        self.touched.number = r.choice(INTS)
        setattr(self.extra, f"x{r.randint(0, 60)}", 1)
        self.extra.number = r.choice(INTS)
        self.slots = r.choice([Slots, MoreSlots, SlotsAndDict])(r)
        self.more = MoreSlots(r)
        self.both = SlotsAndDict(r)
        self.error.code = r.choice(INTS)
        self.sub = Sub((str(i), i) for i in range(r.randint(0, 5)))
        self.sub.attr = r.choice(INTS)
        self.queue = Queue(range(r.randint(0, 200)))
        self.taken = r.randint(0, len(self.queue))
        for _ in range(self.taken):
            self.queue.popleft()
        self.frozen = frozenset(str(i) for i in range(r.randint(0, 20)))

    def say(self, how, out, local, cell, big, items, level, text, maybe, jobs, others):
        def s(v, n=64):
            width = 1 if max(map(ord, v), default=0) < 256 else 2 if max(map(ord, v)) < 65536 else 4
            return v if len(v) * width <= n else LIMIT

        def n(v):
            return v if -(2**63) < v < 2**63 else LIMIT

        p = self.plain
        want = {
            "who": self.who, "seq": self.seq, "how": how, "number": p.number, "ratio": p.ratio, "flag": p.flag, "nothing": None, "text": s(p.text),
            "touched": self.touched.number, "extra": self.extra.number, "wide": self.wide.a37, "huge": self.huge.a299, "huge0": self.huge.a0,
            "first": self.slots.first, "second": s(self.slots.second), "unset": {"missing": "unset"}, "third": self.more.third,
            "fourth": self.both.fourth, "both_first": self.both.first, "code": self.error.code, "sub_attr": self.sub.attr, "sub_len": len(self.sub),
            "absent": {"missing": "no_name"}, "wrong": {"missing": "other_type"}, "len_wrong": {"missing": "other_type"},
            "tokens": [[s(k, 40), v] for k, v in out.tokens.items()], "tokens_len": len(out.tokens), "total": out.total,
            "general": [[s(k, 40) if isinstance(k, str) else k, v] for k, v in self.general.items()],
            "gone": [[k, v] for k, v in self.gone.items()], "gone_key": self.gone.get("k199", {"missing": "no_name"}),
            "fresh": [[s(o.second), o.first] for o in out.fresh], "fresh_len": [[o.first, len(o.second)] for o in out.fresh],
            "first_fresh": s(out.fresh[0].second) if out.fresh else {"missing": "no_name"},
            "done": sorted(out.done), "done_len": len(out.done), "maybe": maybe, "queue": len(self.queue), "queue_0": self.element(0), "queue_20": self.element(20), "frozen": sorted(self.frozen),
            "tuple": list(items), "tuple_len": len(items), "local": n(local), "cell": cell, "big": n(big), "level": int(level), "str_sub": str(text),
        }
        gone = {"missing": "no_name"}
        ids = [j.id for j in jobs]
        want.update({
            "jobs": [[j.id, j.stats.number, j.stats.ratio, s(j.stats.text, 40), j.wide.a3 if j.wide else gone, len(j.ids)]
                     for j in jobs],
            "ended": [[j.id, j.stats.ratio] for j in jobs if j.reason is not None],
            "alone": [[j.id, j.stats.ratio] for j in jobs if j.stream is False],
            "low_others": ids if level is Level.LOW and others is not jobs else "not read",
            "under_way": [[j.stats.ratio, id(j)] for j in jobs if j.reason is None],
            "by_name": [[j.id, j.wide.a7 if j.wide else gone] for j in jobs],
            "low": ids if level is Level.LOW else "not read", "high": ids if level is not Level.LOW else "not read",
            "others": ids if others is not jobs else "not read", "others_len": len(others) if others is not jobs else "not read",
        })
        with write:
            print(json.dumps(want), flush=False)

    def element(self, i):
        """Element i of the queue, where its first block of 64 has it: deque_extend fills a new one from its second place on."""
        if i < len(self.queue) and (1 + self.taken) % 64 + i < 64:
            return self.queue[i]
        return {"missing": "no_name"}

    def step(self, how):
        self.change()
        r = self.r
        out = Output(dict(self.table), sum(self.table.values()) % 2**60, [Slots(r) for _ in range(r.randint(0, 30))],
                     {f"d{i}" for i in range(r.randint(0, 40))}, r.choice([None, 1, "m"]))
        for _ in range(r.randint(0, 30)):
            out.done.add(f"e{r.randint(0, 99)}")
            out.done.discard(f"d{r.randint(0, 40)}")
        local = r.choice(INTS)
        big = r.choice([2**63, -(2**63), 2**64, 2**90, 10**40, 5])
        items = tuple(r.choice(INTS) for _ in range(r.randint(0, 5)))
        level = r.choice(list(Level))
        text = Text("sub" * r.randint(0, 5))
        maybe = out.maybe
        cell = r.choice(INTS)
        jobs = [Job(r, i) for i in range(r.randint(0, 40))]
        by_name = {j.id: j for j in jobs}
        others = self.others = r.choice([jobs, list(jobs)])
        function = self.say
        self.say(how, out, local, cell, big, items, level, text, maybe, jobs, others)
        clock()
        return lambda: cell

    def generator(self):
        while True:
            yield self.step("generator")

    async def coroutine(self, n):
        for _ in range(n):
            await asyncio.sleep(0)
            self.step("coroutine")

    def key(self):
        # Called back from C code, whose frame stands between.
        sorted([1], key=lambda _: self.step("callback"))


class Victim:
    pass


def look(what, x):
    clock()


def poke(what, x, at, word):
    """Captures x while a word of it is another one."""
    place = ctypes.c_uint64.from_address(id(x) + at)
    old = place.value
    place.value = word
    look(what, x)
    place.value = old


def corrupt():
    """Objects that are not what their types say. None of this is touched by Python."""
    for word in (0, 1, 8, 4096, 2**47 - 8, 2**63, 2**64 - 8):
        poke("list", [1, 2, 3], 24, word)
        poke("dict", {"a": 1}, 32, word)
        victim = Victim()
        victim.a = 1
        victim.__dict__
        poke("object", victim, -24, word)
        poke("set", {"a", "b"}, 40, word)
    for word in (2**31, 2**40, 2**62, 2**63, 2**64 - 1):
        poke("list size", [1, 2, 3], 16, word)
        poke("tuple size", tuple([4, 5, len(sys.argv)]), 16, word)
        poke("str size", "text" + str(word), 16, word)
        poke("int size", 10**20 + word, 16, word)
        poke("set size", {"a", "b"}, 24, word)
        poke("set mask", {"a", "b"}, 32, word)
    for word in (0, 7 << 2, 1 << 4 | 1 << 5, 2**32 - 1):
        poke("str state", "text" + str(word), 32, word)
    # An object that an old reference in a container no longer is.
    items = [object() for _ in range(3)]
    ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(id(items) + 24).value + 8).value, old = 2**40, id(items[1])
    look("element", items)
    ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(id(items) + 24).value + 8).value = old


def large(n):
    x = {f"key-{i:06d}-" + "x" * 40: i for i in range(n)}
    clock()
    return x


def items(n, times):
    x = {f"chatcmpl-{i:032x}": i for i in range(n)}
    self = Wide(random.Random(1), 24)
    for _ in range(times):
        clock()
    return x, self


class Times:
    """As many attributes as the times of a request are, and as many of these as of a request."""

    def __init__(self, n):
        for i in range(n):
            setattr(self, f"t{i}", i * 0.5)
        self.rid = f"{n:032x}"


def timed(n, times):
    x = [Times(150) for _ in range(n)]
    for i in x:
        i.times = Times(40)
    for _ in range(times):
        clock()
    return x


def sleeper(seconds):
    x = seconds
    time.sleep(seconds)
    return x


def inner(x):
    clock()


def outer(x):
    inner(x * 2)


def other(x):
    inner(x * 3)


def spin(n):
    for _ in range(n):
        time.monotonic()


def run(maker, steps):
    gen = maker.generator()
    for i in range(steps):
        if i % 4 == 0:
            maker.step("method")
        elif i % 4 == 1:
            next(gen)
        elif i % 4 == 2:
            maker.key()
        else:
            asyncio.run(maker.coroutine(1))


def main():
    steps, seed = int(sys.argv[1]), int(sys.argv[2])
    makers = [Maker(random.Random(seed * 100 + i), f"t{i}") for i in range(4)]
    if "fork" in sys.argv and (child := os.fork()):
        os.waitpid(child, 0)
        return
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        what = line.split()
        if what[0] == "run":
            threads = [threading.Thread(target=run, args=(m, steps)) for m in makers[1:]]
            for t in threads:
                t.start()
            run(makers[0], steps)
            for t in threads:
                t.join()
            spin(500)
        elif what[0] == "replace":
            # Another function under the name, with other places of its variables.
            exec(compile("def clock():\n    unused = other = 1\n    return time.monotonic()\n", "<replaced>", "exec"), globals())
        elif what[0] == "corrupt":
            corrupt()
        elif what[0] == "large":
            large(int(what[1]))
        elif what[0] == "timed":
            timed(int(what[1]), int(what[2]))
        elif what[0] == "items":
            items(int(what[1]), int(what[2]))
        elif what[0] == "sleep":
            sleeper(float(what[1]))
        elif what[0] == "nested":
            outer(1)
            other(2)
            inner(3)
            clock()
        elif what[0] == "steps":
            for _ in range(int(what[1])):
                makers[0].step("method")
        elif what[0] == "spin":
            spin(int(what[1]))
        print("done", flush=True)


if __name__ == "__main__":
    main()

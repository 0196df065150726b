"""Calls zlib.crc32 in look(), with objects whose attributes lie elsewhere each time.

On a line "go N SEED" it makes N calls and answers "done". What the object's attribute
"value" is, None if it has none, look() has in its variable want.
"""

import gc
import random
import sys
import zlib


def look(obj, want, text, other):
    return zlib.crc32(b"x")


class Plain:
    def __init__(self, value, before=()):
        for name in before:
            setattr(self, name, -1)
        self.value = value


class Late(Plain):
    """Has its values in another order than its base."""

    def __init__(self, value):
        self.after = -2
        self.zero = -3
        super().__init__(value)


class Slots:
    __slots__ = ("x", "value")

    def __init__(self, value):
        self.x, self.value = -1, value


class Bare:
    pass


def passing(r, value):
    """An object of a class that is gone soon, where others may be made."""
    names = ["a%d" % n for n in range(r.randrange(6))]
    cls = type("T%d" % r.randrange(3), (Plain,) if r.random() < 0.5 else (), {})
    obj = cls.__new__(cls)
    for name in names:
        setattr(obj, name, -1)
    obj.value = value
    return obj


def make(r, kept, value):
    how = r.randrange(12)
    if how == 0:
        return Plain(value), value
    if how == 1:
        return Late(value), value
    if how == 2:
        return Plain(value, ["b%d" % n for n in range(r.randrange(40))]), value  # may be too many to share keys
    if how == 3:
        obj = Plain(value)
        vars(obj)["more"] = 1  # has a dict now
        return obj, value
    if how == 4:
        obj = Plain(-5)
        del obj.value
        if r.random() < 0.5:
            obj.other = -6
        obj.value = value  # behind what it was
        return obj, value
    if how == 5:
        obj = Plain(-5)
        del obj.value
        return obj, None
    if how == 6:
        Plain.version = value  # the class changes
        return Plain(value), value
    if how == 7:
        obj = kept[r.randrange(len(kept))]
        obj.value = value  # one that was seen before
        return obj, value
    if how == 8:
        kept[r.randrange(len(kept))] = obj = Plain(value, ["c%d" % n for n in range(r.randrange(3))])
        return obj, value
    if how == 9:
        return Bare(), None
    if how == 10:
        obj = Bare()
        obj.__dict__ = {"q%d" % n: -1 for n in range(r.randrange(9))}
        obj.__dict__["value"] = value
        return obj, value
    return passing(r, value), value


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        _, n, seed = line.split()
        r = random.Random(int(seed))
        kept = [Plain(0) for _ in range(4)]
        for i in range(int(n)):
            value = r.choice([i, -i, i << 40, float(i), "s%d" % i, "%d" % i * r.randrange(1, 20), True, "\u00e9%d" % i])
            obj, want = make(r, kept, value)
            other = kept[r.randrange(len(kept))]
            look(obj, want, value, other)
            if i % 100 == 0:
                gc.collect()
        print("done", flush=True)


main()

"""Calls a function of a C library from several threads at once, without the
interpreter's lock, while others run Python code. One command: "go CALLS"."""

import ctypes
import sys
import threading

lib = ctypes.CDLL(sys.argv[1])  # it releases the lock around each call
stop = False


def busy():
    n = 0
    while not stop:
        n += 1


def send(n):
    message = ctypes.create_string_buffer(64)
    lib.zmq_msg_send(message, None, 0)


def dispatch(batch, calls):
    for n in range(calls):
        send(n)


print("ready", flush=True)
for line in sys.stdin:
    calls = int(line.split()[1])
    spin = threading.Thread(target=busy)
    spin.start()
    threads = [threading.Thread(target=dispatch, args=(f"batch {i}", calls)) for i in range(4)]
    for t in threads:
        t.start()
    dispatch("batch main", calls)
    for t in threads:
        t.join()
    stop = True
    spin.join()
    print("done", flush=True)

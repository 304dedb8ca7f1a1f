"""What is free is used again: one heap, a collector that comes in time, and nothing made anew for it."""

from __future__ import annotations

import _ctypes
import gc
import subprocess
import sys

from mcpd.support.memory_tuning import trim_heap

BOUND = 60.0


def test_trim_heap_creates_no_garbage() -> None:
    """Each look at the C library makes a class; one was made at the end of every connection to a server."""
    gc.disable()
    try:
        trim_heap()
        classes = len(_ctypes.CFuncPtr.__subclasses__())
        for _ in range(10):
            trim_heap()
        assert len(_ctypes.CFuncPtr.__subclasses__()) == classes
    finally:
        gc.enable()


def in_a_process_of_its_own(program: str) -> str:
    """What it says: these are settings of a whole process."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=True
    )
    return done.stdout + done.stderr


LONG_LIVED = """
import gc, weakref
from mcpd.support.memory_tuning import limit_memory_growth

class Server:
    def __init__(self):
        self.itself = self

limit_memory_growth()
server = Server()
gc.collect()
gc.collect()  # now it is old, in any version of Python
end = weakref.ref(server)
del server
made = []
while end() is not None and len(made) < 1_000_000:
    for _ in range(1000):  # without end(), which keeps the server alive if the collector runs just then
        made.append([])
print(end() is None)
"""


def test_old_objects_are_collected() -> None:
    """A server that was removed, with its lists and its log, waited for eight million new objects."""
    assert in_a_process_of_its_own(LONG_LIVED) == "True\n"


THREADS = """
import ctypes, threading
from mcpd.support.memory_tuning import limit_memory_growth

limit_memory_growth()
ready = threading.Barrier(8)
def work(kept):
    ready.wait()
    kept.append(bytearray(5000))
    ready.wait()
threads = [threading.Thread(target=work, args=([],)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.CDLL(None).malloc_stats()
"""


def test_all_threads_share_one_heap() -> None:
    """What was free in one of several was of no use to the others: each grew to its own most."""
    assert in_a_process_of_its_own(THREADS).count("Arena ") == 1

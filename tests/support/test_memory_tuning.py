"""Freed memory is reused: one heap, timely garbage collection, and no garbage from trimming."""

from __future__ import annotations

import _ctypes
import gc
import subprocess
import sys

from mcpd.support.memory_tuning import trim_heap

BOUND = 60.0


def test_trim_heap_creates_no_garbage() -> None:
    """Loading the C library creates a class, which used to happen at the end of every connection."""
    gc.disable()
    try:
        trim_heap()
        classes = len(_ctypes.CFuncPtr.__subclasses__())
        for _ in range(10):
            trim_heap()
        assert len(_ctypes.CFuncPtr.__subclasses__()) == classes
    finally:
        gc.enable()


def output_of_subprocess(program: str) -> str:
    """Return the program's output. The tested settings affect a whole process."""
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
    """A removed server with its lists and log used to stay until eight million new objects existed."""
    assert output_of_subprocess(LONG_LIVED) == "True\n"


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
    """With several heaps, each grows to its own maximum because memory freed in one is not available to
    others."""
    assert output_of_subprocess(THREADS).count("Arena ") == 1


GENERATED = """
import linecache
import mcpd.model.api
from mcpd.support.memory_tuning import limit_memory_growth

before = len(linecache.cache)
limit_memory_growth()
print(before > 50, len(linecache.cache))
"""


def test_source_of_generated_methods_is_dropped() -> None:
    assert output_of_subprocess(GENERATED) == "True 0\n"


LEFT_OUT = """
import gc, weakref
import trio
from trio.testing import MockClock
from mcpd.support import memory_tuning

class Server:
    def __init__(self):
        self.itself = self

async def main():
    server = Server()
    end = weakref.ref(server)
    memory_tuning.trim_heap_soon(collect=True)
    await trio.sleep(10)
    del server
    memory_tuning.trim_heap_soon(collect=True)
    await trio.sleep(3600)
    print(end() is None)
    grown = b"x" * (64 << 20)
    memory_tuning.trim_heap_soon(collect=True)
    await trio.sleep(3600)
    print(end() is None)

memory_tuning.limit_memory_growth()
gc.disable()
memory_tuning._LONG_COLLECTION = DURATION
trio.run(main, clock=MockClock(autojump_threshold=0))
"""


def test_long_collection_leaves_old_objects_out_until_the_memory_grows() -> None:
    """With 1,700 servers, each collection took 0.1 s of the event loop."""
    assert output_of_subprocess(LEFT_OUT.replace("DURATION", "-1")) == "False\nTrue\n"


def test_short_collections_look_at_all_objects() -> None:
    assert output_of_subprocess(LEFT_OUT.replace("DURATION", "60")) == "True\nTrue\n"

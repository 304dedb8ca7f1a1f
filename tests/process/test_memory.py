"""Freed memory is reused: one heap and timely garbage collection."""

from __future__ import annotations

import subprocess
import sys

BOUND = 60.0


def output_of_subprocess(program: str) -> str:
    """Return the program's output. The tested settings affect a whole process."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=True
    )
    return done.stdout + done.stderr


LONG_LIVED = """
import gc, weakref
from mcpd.process.memory import limit_memory_growth

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
from mcpd.process.memory import limit_memory_growth

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


RELEASED_LATER = """
import gc, trio
from trio.testing import MockClock
from mcpd.process.memory import limit_memory_growth, trim_heap_soon

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

async def main(clock):
    base = resident()
    message, last = bytearray(20 << 20), bytearray(5000)  # `last` keeps the top of the heap
    message[::4096] = b"x" * len(message[::4096])
    trim_heap_soon()
    await trio.sleep(1)  # the message is still being sent
    del message
    before = resident() - base
    await trio.sleep(10)
    print(before > 16 << 20, resident() - base < 4 << 20)

limit_memory_growth()
clock = MockClock(autojump_threshold=0)
trio.run(main, clock, clock=clock)
"""


def test_memory_released_after_the_first_trim_returns_to_the_system() -> None:
    """A client that reads a large message slowly holds it for longer than the first trim waits."""
    assert output_of_subprocess(RELEASED_LATER) == "True True\n"

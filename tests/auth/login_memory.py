"""Prints how many bytes a hundred logins take: at rest, and in use. A process of its own, since tables of the
interpreter grow by megabytes once others have filled them.
"""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from pathlib import Path

import attrs
import trio
from trio.testing import MockClock

from tests.auth.authorization_server import START, a_login, logged_in

LOGINS = 100
ACCESS_TOKEN, REFRESH_TOKEN = 1500, 200
"""Characters."""


async def measure(home: Path) -> None:
    async with logged_in(home) as world:
        for number in range(LOGINS):
            tokens = {
                "access_token": f"{number}-access-".ljust(ACCESS_TOKEN, "a"),
                "refresh_token": f"{number}-refresh-".ljust(REFRESH_TOKEN, "b"),
            }
            url = f"https://h{number}.example/mcp"
            login = attrs.evolve(a_login(tokens, START, resource=url), machine="this machine")
            world.store.change(lambda found, login=login, url=url: found.with_login(login, url))  # type: ignore[misc]
    servers = [(f"u{number}", f"https://h{number}.example/mcp") for number in range(LOGINS)]
    tracemalloc.start()
    async with logged_in(home, login=False) as world:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for name, url in servers:
            await world.manager.credentials_for(name, f"{url}/none")
        gc.collect()
        at_rest = tracemalloc.get_traced_memory()[0] - before
        used = [await world.manager.credentials_for(name, url) for name, url in servers]
        for each in used:
            signature = each.sign("POST", each.url)
            assert signature is not None
            assert signature.headers
        gc.collect()
        print(at_rest, tracemalloc.get_traced_memory()[0] - before)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        trio.run(measure, Path(home), clock=MockClock(autojump_threshold=0))

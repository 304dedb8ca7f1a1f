"""How the official suite, which speaks only HTTP, gets to a reference server: directly, and through mcpd.

mcpd reaches the server over stdio or over HTTP, and the suite reaches mcpd in one of three ways:

- at the endpoint of the server, `/servers/NAME/mcp`;
- at the aggregate, `/mcp`, with `clientToolNames: plain`, because the suite knows the server's own names;
- through `mcpctl bridge`, with a program in front of it that serves a stdio server over HTTP. This is a
  second mcpd, or supergateway, which starts a process for each session and passes all messages on unchanged.

supergateway fails some scenarios itself. So the bridge behind it is compared with the reference server behind
it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.conformance.references import Everything, Reference
from tests.conformance.suite import MODERN, ROOT, program
from tests.e2e import harness
from tests.interop import peers
from tests.interop.clients.drivers import stdio

DIRECT, SUPERGATEWAY = "direct", "superg."
STDIO, HTTP = "stdio", "http"
UPSTREAMS = (STDIO, HTTP)
SERVER, AGGREGATE, BRIDGE, BRIDGE_BEHIND_SUPERGATEWAY = "", "all", "bridge", "sg-bridge"
FRONTS = (SERVER, AGGREGATE, BRIDGE, BRIDGE_BEHIND_SUPERGATEWAY)
Url = Callable[[str], str]
"""Given a revision, returns the URL for the suite."""


def _way(front: str, upstream: str) -> str:
    return f"{front} {upstream}".strip()


EVERY_WAY = (DIRECT, SUPERGATEWAY, *(_way(front, upstream) for upstream in UPSTREAMS for front in FRONTS))
WITHOUT_MCPD = (DIRECT, SUPERGATEWAY)
BASELINES = {_way(BRIDGE_BEHIND_SUPERGATEWAY, upstream): SUPERGATEWAY for upstream in UPSTREAMS} | {
    SUPERGATEWAY: SUPERGATEWAY
}
"""What a way is compared with, if not with `DIRECT`."""


def usual_ways(reference: Reference) -> Sequence[str]:
    """Return the ways of a short run: each front with one upstream per generation."""
    if reference.name == "sdk1":
        return DIRECT, _way(SERVER, STDIO)
    if not isinstance(reference, Everything):
        return DIRECT, _way(SERVER, STDIO), _way(SERVER, HTTP)
    one, other = UPSTREAMS if reference.name == "everything2" else reversed(UPSTREAMS)
    return DIRECT, _way(SERVER, one), _way(AGGREGATE, one), _way(SERVER, other), _way(BRIDGE, other)


@contextmanager
def reached(reference: Reference, wanted: Sequence[str], home: Path) -> Iterator[Mapping[str, Url]]:
    """Run the reference server in each of the wanted ways, and return the URLs for the suite.

    One mcpd for each upstream serves all its ways and revisions, as it does for a user with several clients.
    """
    with ExitStack() as stack:
        found: dict[str, Url] = {}
        if DIRECT in wanted:
            found[DIRECT] = _always(stack.enter_context(_listening(reference)))
        if SUPERGATEWAY in wanted:
            command = stdio(*reference.stdio(), environ=_environ(reference))
            found[SUPERGATEWAY] = stack.enter_context(_supergateway(command))
        for upstream in UPSTREAMS:
            fronts = [front for front in FRONTS if _way(front, upstream) in wanted]
            if fronts:
                urls = stack.enter_context(_behind_mcpd(reference, upstream, fronts, home / upstream))
                found |= {_way(front, upstream): url for front, url in urls.items()}
        yield {way: found[way] for way in wanted}


@contextmanager
def _behind_mcpd(
    reference: Reference, upstream: str, fronts: Sequence[str], home: Path
) -> Iterator[Mapping[str, Url]]:
    with ExitStack() as stack:
        if upstream == HTTP:
            definition: Mapping[str, Any] = {"url": stack.enter_context(_listening(reference))}
        else:
            definition = stdio(*reference.stdio(), environ=_environ(reference))
        daemon, origin = stack.enter_context(mcpd(home / "mcpd", {"reference": definition}))
        daemon.wait_connected("reference")
        found: dict[str, Url] = {
            SERVER: _always(f"{origin}/servers/reference/mcp"),
            AGGREGATE: _always(f"{origin}/mcp"),
        }
        bridge = _bridge(daemon)
        if BRIDGE in fronts:
            second, origin = stack.enter_context(mcpd(home / "second", {"bridge": bridge}))
            second.wait_connected("bridge")
            found[BRIDGE] = _always(f"{origin}/servers/bridge/mcp")
        if BRIDGE_BEHIND_SUPERGATEWAY in fronts:
            found[BRIDGE_BEHIND_SUPERGATEWAY] = stack.enter_context(_supergateway(bridge))
        yield {front: found[front] for front in fronts}


def _bridge(daemon: harness.Daemon) -> dict[str, Any]:
    """Return the command that an editor starts to use all servers of this daemon."""
    ours = {name: text for name, text in daemon.environ.items() if name.startswith("XDG_")}
    return stdio(sys.executable, "-m", "ctl", "bridge", environ={**ours, "PYTHONPATH": str(ROOT)})


@contextmanager
def _listening(reference: Reference) -> Iterator[str]:
    """Run a reference server over HTTP and return its URL."""
    port = peers.free_port()
    with peers.listening(reference.http(port), port, _environ(reference)):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def mcpd(home: Path, servers: Mapping[str, Any]) -> Iterator[tuple[harness.Daemon, str]]:
    """Run an mcpd without authentication on loopback, because the suite sends no token; return its origin."""
    home.mkdir(parents=True)
    flags = ("--http", "127.0.0.1:0", "--http-auth", "none")
    with harness.running(home, servers, *flags, settings={"clientToolNames": "plain"}) as daemon:
        with daemon.client() as client:
            received = urlsplit(client.request("mcpd/status")["daemon"]["http"]["url"])
        yield daemon, f"{received.scheme}://{received.netloc}"


@contextmanager
def _supergateway(definition: Mapping[str, Any]) -> Iterator[Url]:
    """Serve a stdio server over HTTP: with sessions for the legacy revisions, and without for the modern
    one, because supergateway supports either.
    """
    command = shlex.join([definition["command"], *definition["args"]])
    with ExitStack() as stack:
        urls = []
        for mode in (["--stateful"], []):
            port = peers.free_port()
            argv = program("supergateway", "--stdio", command, "--outputTransport", "streamableHttp", *mode)
            listening = peers.listening([*argv, "--port", str(port)], port, definition["env"])
            stack.enter_context(listening)
            urls.append(f"http://127.0.0.1:{port}/mcp")
        legacy, modern = urls
        yield lambda revision: modern if revision == MODERN else legacy


def _environ(reference: Reference) -> dict[str, str]:
    return {"PYTHONPATH": str(reference.imports)}


def _always(url: str) -> Url:
    return lambda revision: url

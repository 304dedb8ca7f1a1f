"""The parsed definition of a server (frozen values, all durations in seconds), and its unresolved secrets.

The spelling of the fields in a configuration file is in `config/field_names.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import attrs

MEBIBYTE = 1024 * 1024

Era = Literal["auto", "modern", "legacy"]
Concurrency = Literal["free", "writes", "serial"]
Share = Literal["all", "root", "client"]


@attrs.frozen(kw_only=True)
class Timeouts:
    """How long mcpd waits for the parts of a server's work."""

    connect: float = 30.0
    """The handshake: from the start of the process until the server accepts requests."""
    install: float = 300.0
    """The download by a package runner (`npx`, `uvx`, `docker run` …), before `connect` begins."""
    list: float = 15.0
    """Fetching one list with all its pages."""
    call: float = 120.0
    """A call without a response or progress; progress restarts it."""
    call_max: float = 1800.0
    """A call in total, despite progress."""
    tools: Mapping[str, float] = attrs.field(factory=dict)
    """Tool → timeout that replaces `call`."""
    probe: float = 5.0
    """The response of a stdio server to `server/discover`; without one, it is treated as legacy."""
    ping_idle: float = 30.0
    """Silence after which a health check is sent."""
    ping: float = 10.0
    """The response to a health check."""
    ping_misses: int = 2
    """Failed health checks in a row after which the server is considered wedged."""
    write: float = 8.0
    """How long a server may not read its input before unsent requests fail."""
    stop_close: float = 2.0
    """Between closing stdin and SIGTERM."""
    stop_term: float = 3.0
    """Between SIGTERM and SIGKILL."""


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """When a server that ended is restarted: exponential backoff from `base` to `cap`, with jitter."""

    base: float = 0.5
    factor: float = 2.0
    cap: float = 60.0
    floor: float = 0.25
    """The minimum time between two starts."""
    stable: float = 60.0
    """A connection that lasted this long resets the backoff."""
    proof: float = 10.0
    """A successful call this long after connecting resets the backoff, too."""
    intensity: int = 5
    """This many failures …"""
    period: float = 60.0
    """… within this time are a crash loop."""
    probe: float = 300.0
    """The time between two starts in a crash loop, ± `probe_spread` (a fraction)."""
    probe_spread: float = 0.2


@attrs.frozen(kw_only=True)
class ServerSpec:
    """The fields of servers with any transport."""

    name: str
    enabled: bool = True
    lazy: bool = False
    """Start on first use; until then its tools are listed from the cache."""
    include_tools: tuple[str, ...] | None = None
    """The server's own names; `*` and `?` allowed. None: all."""
    exclude_tools: tuple[str, ...] = ()
    debug: bool = False
    description: str = ""
    era: Era = "auto"
    timeouts: Timeouts = Timeouts()
    restart: RestartPolicy = RestartPolicy()
    max_frame: int = 32 * MEBIBYTE
    max_in_flight: int = 64
    """The maximum number of concurrent requests; further requests are queued."""
    concurrency: Concurrency = "free"
    """Which calls may overlap: `free` all, `serial` none, `writes` only those of read-only tools."""
    share: Share = "all"
    """Which clients share one process or session: `all`, those with the same `root`, or none (`client`)."""
    max_queued: int = 256
    """The maximum number of queued requests; further requests are refused immediately."""
    unresolved: UnresolvedDefinition | None = attrs.field(default=None, eq=False, repr=False)
    """Set while secrets are not fetched yet; the other fields contain `${…}` until then."""

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields whose change requires a new connection."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class StdioSpec(ServerSpec):
    """A child process that exchanges messages on stdin and stdout."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)
    """Added to the variables that the child inherits from mcpd (an allow list)."""
    cwd: str | None = None
    umask: int = 0o077

    @property
    def identity(self) -> tuple[object, ...]:
        return ("stdio", self.command, self.args, tuple(sorted(self.env.items())), self.cwd, self.umask)


@attrs.frozen(kw_only=True)
class RemoteSpec(ServerSpec):
    """A server reached over the network by URL."""

    kind: Literal["http", "sse", "ws"]
    url: str
    headers: Mapping[str, str] = attrs.field(factory=dict)
    kind_is_explicit: bool = False
    """Whether the definition sets `kind`. If not, it is guessed from the URL, and HTTP+SSE is tried, too."""
    ca_file: str | None = None
    """A PEM file with CA certificates to trust in addition to the system's."""

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.kind, self.url, tuple(sorted(self.headers.items())), self.ca_file)


SecretKind = Literal["secret", "credential", "file", "cmd"]


@attrs.frozen
class SecretReference:
    """`${secret:NAME}` or another reference that is resolved when the server starts."""

    kind: SecretKind
    arguments: tuple[str, ...]
    """The name, the absolute path, or the words of the command line."""


@attrs.frozen
class UnavailableSecret:
    """Why a secret has no value, and what to do."""

    message: str
    fix: str
    missing: bool = False
    """The secret does not exist, so a default applies. False: it could not be read."""


FetchedSecrets = Mapping[SecretReference, str | UnavailableSecret]


@attrs.frozen
class ResolvedDefinition:
    """A definition with the fetched secrets inserted; complete when `unresolved` is empty."""

    spec: ServerSpec
    unresolved: tuple[SecretReference, ...]
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""


class UnresolvedDefinition(Protocol):
    """A definition that refers to secrets."""

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        """Insert the fetched secrets. Raises BadSpec if one is unavailable, or makes a field invalid."""
        ...


@attrs.frozen
class ServersDiff:
    """The names of the servers that differ between two sets, sorted. Unchanged servers keep running."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def diff_specs(old: Mapping[str, ServerSpec], new: Mapping[str, ServerSpec]) -> ServersDiff:
    """Compare two sets of servers by name and equality."""
    both = old.keys() & new.keys()
    return ServersDiff(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(name for name in both if old[name] != new[name])),
        unchanged=tuple(sorted(name for name in both if old[name] == new[name])),
    )


def definition_parts(definition: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a definition as written, by names such as `args` and `env.TOKEN`."""
    found: dict[str, object] = {}
    for key, value in definition.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = value
    return found


def changed_parts(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the fields that differ, in the order of `new`; removed ones last."""
    before, after = definition_parts(old), definition_parts(new)
    names = [*after, *(name for name in before if name not in after)]
    return tuple(
        name for name in names if name not in before or name not in after or before[name] != after[name]
    )

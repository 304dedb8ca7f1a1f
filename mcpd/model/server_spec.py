"""What a server's definition says, once checked: frozen values, equal when they mean the same server.

All durations are seconds. The spelling of these fields in a configuration file (`timeout` in
milliseconds, `includeTools`, …) is the business of `config/definition.py`.
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
    """How long to wait for what. Figures from RELIABILITY section 3."""

    connect: float = 30.0
    """Handshake: from the process being there to the server being ready to list."""
    install: float = 300.0
    """For a package runner (`npx`, `uvx`, `docker run` …) to fetch what it runs, before `connect` begins."""
    list: float = 15.0
    """One listing, all its pages together."""
    call: float = 120.0
    """Silence allowed during a call; progress starts it afresh."""
    call_max: float = 1800.0
    """A call's end whatever its progress."""
    tools: Mapping[str, float] = attrs.field(factory=dict)
    """Per tool, in place of `call`."""
    probe: float = 5.0
    """How long a stdio server may leave `server/discover` unanswered before we take it for a legacy one."""
    ping_idle: float = 30.0
    """Silence before a liveness request is sent."""
    ping: float = 10.0
    """How long that request may take."""
    ping_misses: int = 2
    """Misses in a row that mean the server is wedged."""
    write: float = 8.0
    """How long a server may refuse to read its input before unsent requests are failed."""
    stop_close: float = 2.0
    """After closing stdin, before SIGTERM."""
    stop_term: float = 3.0
    """After SIGTERM, before SIGKILL."""


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """When a server that ended is started again. Figures from RELIABILITY section 3."""

    base: float = 0.5
    factor: float = 2.0
    cap: float = 60.0
    floor: float = 0.25
    """Never less than this between two spawns."""
    stable: float = 60.0
    """Connected for this long, or `proof` below: the next failure counts as the first."""
    proof: float = 10.0
    """A call that succeeds this long after the connection proves it as well."""
    intensity: int = 5
    """This many ended starts …"""
    period: float = 60.0
    """… within this time is a crash loop."""
    probe: float = 300.0
    """In a crash loop, one start every so often, ± `probe_spread`."""
    probe_spread: float = 0.2


@attrs.frozen(kw_only=True)
class ServerSpec:
    """What every definition has, however the server is reached."""

    name: str
    enabled: bool = True
    lazy: bool = False
    """Started on first use, from a remembered list of tools."""
    include_tools: tuple[str, ...] | None = None
    """None: all. Original names, `*` and `?` allowed."""
    exclude_tools: tuple[str, ...] = ()
    debug: bool = False
    description: str = ""
    era: Era = "auto"
    timeouts: Timeouts = Timeouts()
    restart: RestartPolicy = RestartPolicy()
    max_frame: int = 32 * MEBIBYTE
    max_in_flight: int = 64
    """Requests this server may have unanswered at once; more wait their turn."""
    concurrency: Concurrency = "free"
    """Whether calls may overlap: `free` as the clients sent them, `serial` one after the other, `writes`
    one after the other but for tools that say they change nothing."""
    share: Share = "all"
    """Who uses one process or session together: `all` clients, those that work in the same `root`, or each
    `client` its own."""
    max_queued: int = 256
    """Requests that may wait their turn; more are refused at once."""
    unresolved: UnresolvedDefinition | None = attrs.field(default=None, eq=False, repr=False)
    """There while secrets are still to be put in: the other fields hold `${…}` in their places then."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes it this server and no other; specs that differ only elsewhere share a connection."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class StdioSpec(ServerSpec):
    """A child process that speaks on its stdin and stdout."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)
    """Added to the allow-listed part of our own environment."""
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
    """Whether the definition says `kind`. Else it is a guess from the URL, and HTTP+SSE is tried too."""
    ca_file: str | None = None
    """PEM file of certificate authorities, trusted besides those of the system."""

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.kind, self.url, tuple(sorted(self.headers.items())), self.ca_file)


SecretKind = Literal["secret", "credential", "file", "cmd"]


@attrs.frozen
class SecretReference:
    """`${secret:NAME}` and its like; equal when the same thing is meant."""

    kind: SecretKind
    arguments: tuple[str, ...]
    """A name; an absolute path; a command line, split."""


@attrs.frozen
class UnavailableSecret:
    """Why there is no value, and what to do."""

    message: str
    fix: str
    missing: bool = False
    """It is simply not there: a default stands in."""


FetchedSecrets = Mapping[SecretReference, str | UnavailableSecret]
"""What has been fetched."""


@attrs.frozen
class ResolvedDefinition:
    """A definition with what is known put in; complete when nothing is `wanted`."""

    spec: ServerSpec
    unresolved: tuple[SecretReference, ...]
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""


class UnresolvedDefinition(Protocol):
    """A definition that is complete only once its secrets were fetched."""

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        """Raises BadSpec when something is unavailable, or useless where it stands."""
        ...


@attrs.frozen
class ServersDiff:
    """A plan: names, each list sorted. Unchanged servers keep their process and connection."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def diff_specs(old: Mapping[str, ServerSpec], new: Mapping[str, ServerSpec]) -> ServersDiff:
    """The plan that turns `old` into `new`. Two specs are the same server when they are equal."""
    both = old.keys() & new.keys()
    return ServersDiff(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(name for name in both if old[name] != new[name])),
        unchanged=tuple(sorted(name for name in both if old[name] == new[name])),
    )


def definition_parts(definition: Mapping[str, object]) -> dict[str, object]:
    """The parts of a definition as written, by the names that people know: `args`, `env.TOKEN`."""
    found: dict[str, object] = {}
    for key, value in definition.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = value
    return found


def changed_parts(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """Which parts of a definition are not what they were, in the order of the newer one."""
    before, after = definition_parts(old), definition_parts(new)
    names = [*after, *(name for name in before if name not in after)]
    return tuple(
        name for name in names if name not in before or name not in after or before[name] != after[name]
    )

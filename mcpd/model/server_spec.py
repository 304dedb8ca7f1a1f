"""The parsed definition of a server (frozen values, all durations in seconds), and its unresolved secrets.

The spelling of the fields in a configuration file is in `config/definition.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import attrs

from mcpd.model.errors import Problem
from mcpd.model.record import Record

DEFAULT_ACCOUNT = "default"
_MAX_ACCOUNT = 64

LoginStorage = Literal["file", "keyring", "credential"]
"""Stored logins are not encrypted, or with a key in the session's keyring, or with a systemd credential."""
OAuthGrant = Literal["code", "client_credentials", "enterprise", "workload"]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class IdentityProvider(Record):
    """A company's identity provider, for enterprise-managed authorization."""

    token_endpoint: str
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    id_token: str = attrs.field(repr=False)
    """The person's ID token, which is exchanged for an assertion for each server."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OAuthSettings(Record):
    """Every member is optional. Secrets are not part of `repr`."""

    enabled: bool = True
    """False with `"oauth": false`: mcpd does not log in to this server."""
    account: str = DEFAULT_ACCOUNT
    """Which login to use. Servers with the same URL and account share one."""
    grant: OAuthGrant = "code"
    """`code`: a person logs in. The others need nobody."""
    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    """A PEM key with which the client authenticates (`private_key_jwt`): P-256 or RSA."""
    client_metadata_url: str | None = None
    """The URL of a Client ID Metadata Document."""
    scopes: tuple[str, ...] | None = None
    """Instead of those that the server names."""
    issuer: str | None = None
    """The expected issuer, if the server names another."""
    resource: str | Literal[False] | None = None
    """What to send as `resource` instead of the server's; False to send none."""
    redirect_uri: str | None = None
    """A loopback URL at which mcpd waits for the answer."""
    extra_params: Mapping[str, str] = attrs.field(factory=dict)
    """Added to the authorization request."""
    assertion: str | None = attrs.field(default=None, repr=False)
    """The JWT of a workload, for the grant `workload`."""
    identity_provider: IdentityProvider | None = None
    """For the grant `enterprise`."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What decides which login is used; no secrets."""
        return (
            self.enabled,
            self.account,
            self.grant,
            self.client_id,
            self.issuer,
            self.resource,
            self.scopes,
        )


def account_problem(name: str) -> str:
    """Return why a text cannot name an account; empty if it can."""
    if not name or len(name) > _MAX_ACCOUNT:
        return f"the name of an account must have 1 to {_MAX_ACCOUNT} characters"
    if not name.isprintable() or name != name.strip():
        return "the name of an account must not contain control characters, or begin or end with a space"
    return ""


NO_SETTINGS = OAuthSettings()


MEBIBYTE = 1024 * 1024

Era = Literal["auto", "modern", "legacy", "legacy-first"]
"""`legacy-first` is not for definitions: it prefers the legacy era of a server that speaks both."""
Concurrency = Literal["auto", "free", "writes", "serial"]
LEAST_RESULT_LIMIT = 10_000
"""Characters: what a client gets of a longer result takes up to 8,000."""
Share = Literal["all", "root", "declared-root", "client", "person"]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Timeouts(Record):
    """The timeouts of a server in seconds."""

    connect: float = 30.0
    """The handshake, from the start of the process until the server accepts requests."""
    install: float = 300.0
    """The download by a package runner (such as `npx` or `docker run`), before `connect` begins."""
    list: float = 15.0
    """Fetching one list with all its pages."""
    call: float = 120.0
    """A call that receives no response or progress. Each progress notification restarts this timeout."""
    call_max: float = 1800.0
    """The total time of a call, even if it reports progress."""
    tools: Mapping[str, float] = attrs.field(factory=dict)
    """The timeouts of individual tools, which replace `call`."""
    probe: float = 5.0
    """The response of a stdio server to `server/discover`. If it does not respond, mcpd treats it as
    legacy."""
    ping_idle: float = 30.0
    """The time without messages after which mcpd sends a health check."""
    ping: float = 10.0
    """The response to a health check."""
    ping_misses: int = 2
    """The number of failed health checks in a row after which mcpd considers the server wedged."""
    write: float = 8.0
    """The time for which a server may not read its input before unsent requests fail."""
    stop_close: float = 2.0
    """The time between closing stdin and sending SIGTERM."""
    stop_term: float = 3.0
    """The time between SIGTERM and SIGKILL."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RestartPolicy(Record):
    """When a failed server is started again: the constants of exponential backoff are in
    `supervision.restart`."""

    base: float = 0.5
    """The longest delay after the first failure."""
    cap: float = 60.0
    """The longest delay."""
    intensity: int = 15
    """This many failures within ten minutes are a crash loop."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ArgumentOverride(Record):
    """An argument that clients do not see."""

    value: object = None
    """What the server gets instead. None: nothing."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolOverride(Record):
    """What a definition changes of one tool of its server."""

    name: str = ""
    """The name for clients; empty for the server's own."""
    description: str | None = None
    arguments: Mapping[str, ArgumentOverride] = attrs.field(factory=dict)
    always_load: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerSpec(Record):
    """The fields of servers with any transport."""

    name: str
    enabled: bool = True
    lazy: bool = False
    """Start the server on first use. Until then, mcpd lists its tools from the cache."""
    include_tools: tuple[str, ...] | None = None
    """The original names of the tools to include, with the wildcards `*` and `?`. None includes all tools."""
    exclude_tools: tuple[str, ...] = ()
    tool_overrides: Mapping[str, ToolOverride] = attrs.field(factory=dict)
    """By the original name of a tool."""
    always_load: bool = False
    """Whether hosts that defer tools are asked not to defer these (`_meta` with `anthropic/alwaysLoad`)."""
    tags: tuple[str, ...] = ()
    """The groups that the server and everything it provides belong to."""
    tool_tags: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """The names of tools, with the wildcards `*` and `?` → further groups that they belong to."""
    cache: Mapping[str, float] | None = attrs.field(factory=dict)
    """Seconds for which the results of tools that only read are used again. None: nothing is cached, not even
    what the server says is cacheable."""
    read_only: bool = False
    """Whether tools that are not annotated as read-only are refused to every client."""
    trust: bool = False
    """Whether rules that say `ask` allow the use of this server without asking."""
    debug: bool = False
    validate: bool | None = None
    """Whether arguments and structured results are checked against the tools' schemas. A profile overrides
    it. None: calls of the control API are checked, those of MCP clients are not."""
    result_limit: int | None = None
    """Characters of text in a tool's result above which MCP clients get only its beginning and its end. A
    profile overrides it. None: it depends on the tool and the client."""
    description: str = ""
    era: Era = "auto"
    timeouts: Timeouts = Timeouts()
    restart: RestartPolicy = RestartPolicy()
    max_frame: int = 32 * MEBIBYTE
    max_in_flight: int = 64
    """The maximum number of concurrent requests; further requests are queued."""
    concurrency: Concurrency = "auto"
    """The calls that may overlap. `free` allows all, `serial` none, and `writes` only calls to read-only
    tools. With `auto`, calls of different clients that may change something take turns in a shared process,
    but none waits longer than a second."""
    share: Share = "all"
    """The clients that share a process or session, which are `all`, those with the same `root`, those of the
    same `person`, or none (`client`). A client's root is the first directory that it declares, else the one
    its bridge was started in; with `declared-root`, clients that declare none share the process of the
    definition. With `person`, the login and the secrets are that person's."""
    person: str = ""
    """For whom a dedicated instance is, if `share` is `person`: see `ClientIdentity.person_id`."""
    is_single_process: bool = False
    """Whether mcpd must not start a second process for clients of the legacy era. The definition sets
    `share` or `concurrency`, or the server is known to need all of its clients in one process."""
    max_queued: int = 256
    """The maximum number of queued requests; further requests are refused immediately."""
    unresolved: UnresolvedDefinition | None = attrs.field(default=None, eq=False, repr=False)
    """The definition before its secrets are fetched. Until then, the other fields contain `${…}`."""

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields whose change requires a new connection."""
        raise NotImplementedError

    @property
    def changes_tools(self) -> bool:
        return bool(self.tool_overrides) or self.always_load

    @property
    def selects_tools(self) -> bool:
        """Whether clients may not call all tools of the server by its own names."""
        return bool(self.exclude_tools or self.tool_overrides) or self.include_tools is not None

    @property
    def may_regain_access(self) -> bool:
        """Whether a server that refuses access may grant it later without a person: a secret is replaced."""
        return self.unresolved is not None

    @property
    def takes_write_turns(self) -> bool:
        """Whether calls of different clients that may change something take turns. A remote server has other
        users anyway.
        """
        return self.concurrency == "auto" and self.share != "client" and isinstance(self, StdioSpec)


@attrs.frozen(kw_only=True, eq=False, repr=False)
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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class InvalidSpec(StdioSpec):
    """A server whose definition has errors. It is listed, but every attempt to start it fails with them."""

    command: str = ""
    problems: tuple[Problem, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        return ("invalid", self.problems)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RemoteSpec(ServerSpec):
    """A server reached over the network by URL."""

    kind: Literal["http", "sse", "ws"]
    url: str
    headers: Mapping[str, str] = attrs.field(factory=dict)
    kind_is_explicit: bool = False
    """Whether the definition sets `kind`. If not, mcpd guesses it from the URL and also tries HTTP+SSE."""
    ca_file: str | None = None
    """A PEM file with CA certificates to trust in addition to the system's."""
    oauth: OAuthSettings = NO_SETTINGS

    @property
    def identity(self) -> tuple[object, ...]:
        own = (self.kind, self.url, tuple(sorted(self.headers.items())), self.ca_file)
        login = self.oauth.identity
        return own if login == NO_SETTINGS.identity else (*own, login)  # so that earlier fingerprints stay

    @property
    def may_regain_access(self) -> bool:
        """Also if mcpd obtains its tokens without a person, and the authorization server was restarted."""
        return self.unresolved is not None or self.oauth.grant != "code"

    @property
    def may_log_in(self) -> bool:
        """Whether mcpd may use OAuth: not if the definition has credentials of its own, or forbids it."""
        has_header = any(name.lower() == "authorization" for name in self.headers)
        return self.oauth.enabled and not has_header and "@" not in self.url.partition("://")[2].split("/")[0]


SecretKind = Literal["secret", "credential", "file", "cmd"]


@attrs.frozen(eq=False, repr=False)
class SecretReference(Record):
    """`${secret:NAME}` or another reference that is resolved when the server starts."""

    kind: SecretKind
    arguments: tuple[str, ...]
    """The name, the absolute path, or the words of the command line."""


@attrs.frozen(eq=False, repr=False)
class UnavailableSecret(Record):
    """The reason why a secret has no value, and how to fix it."""

    message: str
    fix: str
    missing: bool = False
    """True if the secret does not exist, so a default applies. False if mcpd could not read it."""


FetchedSecrets = Mapping[SecretReference, str | UnavailableSecret]


@attrs.frozen(eq=False, repr=False)
class ResolvedDefinition(Record):
    """A definition that contains the fetched secrets. It is complete if `unresolved` is empty."""

    spec: ServerSpec
    unresolved: tuple[SecretReference, ...]
    secrets: frozenset[str] = attrs.field(repr=False)
    """The values to mask in all output and logs."""


class UnresolvedDefinition(Protocol):
    """A definition that refers to secrets."""

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        """Insert the fetched secrets. Raises BadSpec if one is unavailable, or makes a field invalid."""
        ...

    def for_person(self, name: str) -> UnresolvedDefinition:
        """Return the definition with the secrets of a person, which are named `NAME@PERSON` in the store. If
        it does not say `"share": "person"`, only the login is the person's.
        """
        ...


@attrs.frozen(eq=False, repr=False)
class ServersDiff(Record):
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
    """Return the names of the fields that differ, in the order of `new`; with removed fields last."""
    before, after = definition_parts(old), definition_parts(new)
    names = [*after, *(name for name in before if name not in after)]
    return tuple(
        name for name in names if name not in before or name not in after or before[name] != after[name]
    )

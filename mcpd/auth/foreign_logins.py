"""Logins that other programs on this machine hold, in the files in which they keep them.

The readers follow the source code of the programs; Claude Code's format follows its public issues. Everything
in these files is validated as untrusted input. The functions block on the disk; call them in a thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
import msgspec

from mcpd.auth.oauth.documents import string, strings
from mcpd.auth.oauth.token_requests import parse_scopes
from mcpd.auth.oauth.well_known import canonical
from mcpd.model import json_limits
from mcpd.support.atomic_files import write_atomically
from mcpd.support.regular_files import read_regular_file

_MAX_SIZE = 4 << 20
_MAX_VALUES = 100_000
_LATEST = 253402300800.0

Json = Mapping[str, object]


@attrs.frozen(kw_only=True)
class ForeignLogin:
    """One login of another program. Nothing in it has been verified. Secrets are not part of `repr`."""

    tool: str
    path: Path
    key: str | int | None
    """Where in the file it is; None if the file contains nothing else."""
    access_token: str = attrs.field(repr=False)
    refresh_token: str | None = attrs.field(repr=False)
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    method: str | None = None
    """How its client authenticates, if the file says so."""
    expires_at: float | None = None
    """Seconds since the epoch."""
    scopes: tuple[str, ...] | None = None


@attrs.frozen
class FoundLogins:
    """What the programs hold for some servers."""

    logins: Mapping[str, tuple[ForeignLogin, ...]]
    """URL of a server → its logins, the one that expires last first."""
    problems: tuple[str, ...]
    """Files that cannot be read, and why."""


def find_foreign_logins(
    urls: Collection[str], environ: Mapping[str, str], tools: Collection[str]
) -> FoundLogins:
    """Return the logins of these programs for the servers at `urls`. Never raises."""
    found: dict[str, list[ForeignLogin]] = {url: [] for url in urls}
    problems: list[str] = []
    for tool in tools:
        source = _Source(tool, environ, found, problems)
        TOOLS[tool](source)
    for each in found.values():
        each.sort(key=lambda login: login.expires_at or 0.0, reverse=True)
    return FoundLogins({url: tuple(logins) for url, logins in found.items()}, tuple(problems))


def remove_foreign_login(login: ForeignLogin) -> None:
    """Delete a login from the file of the other program, if it is still the same one. Raises OSError."""
    if login.key is None:
        login.path.unlink(missing_ok=True)
        return
    data = read_regular_file(login.path, _MAX_SIZE)
    try:
        document = msgspec.json.decode(data)
        section = document["mcpOAuth"] if login.tool == "claude-code" else document
        section = document["entries"] if login.tool == "mcporter" else section
        if login.refresh_token is None or login.refresh_token not in str(section[login.key]):
            return  # meanwhile, the program has another one
        del section[login.key]
    except (msgspec.MsgspecError, LookupError, TypeError):
        return
    write_atomically(login.path, msgspec.json.format(msgspec.json.encode(document), indent=2))


# ── the programs ────────────────────────────────────────────────────────────────────────────────


class _Source:
    """The input and the output of the reader for one program."""

    def __init__(
        self,
        tool: str,
        environ: Mapping[str, str],
        found: dict[str, list[ForeignLogin]],
        problems: list[str],
    ) -> None:
        self.tool = tool
        self.environ = environ
        self.found = found
        self._problems = problems

    def home(self, variable: str, default: str) -> Path:
        """Return the directory in a variable, or the default below the home directory."""
        configured = self.environ.get(variable)
        return Path(configured) if configured else Path(self.environ.get("HOME") or Path.home()) / default

    def read(self, path: Path) -> object:
        """Return a JSON document; None if there is none. A file that cannot be read is a problem."""
        try:
            data = read_regular_file(path, _MAX_SIZE)
            json_limits.check_size(data, _MAX_VALUES, _MAX_SIZE)
            return msgspec.json.decode(data)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._problems.append(f"cannot read {path}: {error.strerror or error}")
        except (msgspec.MsgspecError, RecursionError, json_limits.TooLarge, ValueError):
            self._problems.append(f"{path} is not JSON")
        return None

    def add(
        self,
        url: str | None,
        path: Path,
        key: str | int | None,
        tokens: Json,
        client: Json,
        *,
        unit: float,
        names: _Names,
    ) -> None:
        """Add a login if it is for one of the servers, and complete. `unit`: of its expiry, in seconds."""
        access, client_id = string(tokens, names.access), string(client, names.client_id)
        if url is None or access is None or client_id is None:
            return
        scopes = strings(tokens, "scopes")
        login = ForeignLogin(
            tool=self.tool,
            path=path,
            key=key,
            access_token=access,
            refresh_token=string(tokens, names.refresh),
            client_id=client_id,
            client_secret=string(client, names.client_secret),
            method=string(client, "token_endpoint_auth_method"),
            expires_at=_moment(tokens.get(names.expires_at), unit),
            scopes=scopes if scopes is not None else parse_scopes(tokens.get("scope") or None),
        )
        for each in self.found:
            if _is_same(each, url):
                self.found[each].append(login)


@attrs.frozen
class _Names:
    """A program's names for the members."""

    access: str = "accessToken"
    refresh: str = "refreshToken"
    expires_at: str = "expiresAt"
    client_id: str = "clientId"
    client_secret: str = "clientSecret"  # noqa: S105 - the name of a member


_CAMEL = _Names()
_SNAKE = _Names("access_token", "refresh_token", "expires_at", "client_id", "client_secret")
_MILLISECONDS = 0.001


def _read_mcp_remote(source: _Source) -> None:
    """`mcp-remote-VERSION/HASH_tokens.json`, with the hash of the server's URL; the newest version counts."""
    directory = source.home("MCP_REMOTE_CONFIG_DIR", ".mcp-auth")
    for url in source.found:
        hashes = {hashlib.md5(each.encode(), usedforsecurity=False).hexdigest() for each in _spellings(url)}
        files = [file for name in hashes for file in directory.glob(f"mcp-remote-*/{name}_tokens.json")]
        for path in sorted(files, key=_modified, reverse=True)[:1]:
            tokens = source.read(path)
            client = source.read(path.with_name(path.name.removesuffix("tokens.json") + "client_info.json"))
            if isinstance(tokens, dict) and isinstance(client, dict):
                source.add(url, path, None, tokens, client, unit=_MILLISECONDS, names=_SNAKE)


def _read_claude_code(source: _Source) -> None:
    """`.credentials.json`, member `mcpOAuth`: name and hash → login."""
    path = source.home("CLAUDE_CONFIG_DIR", ".claude") / ".credentials.json"
    for key, entry in _entries(_member(source.read(path), "mcpOAuth")):
        source.add(string(entry, "serverUrl"), path, key, entry, entry, unit=_MILLISECONDS, names=_CAMEL)


def _read_mcporter(source: _Source) -> None:
    """`credentials.json`, member `entries`: name and hash → login. Its expiry is not absolute, so unknown."""
    places = [source.home("HOME", "") / ".mcporter"]
    if source.environ.get("XDG_DATA_HOME"):
        places.append(source.home("XDG_DATA_HOME", "") / "mcporter")
    for path in (place / "credentials.json" for place in places):
        for key, entry in _entries(_member(source.read(path), "entries")):
            tokens, client = _member(entry, "tokens"), _member(entry, "clientInfo")
            if isinstance(tokens, dict) and isinstance(client, dict):
                url = string(entry, "serverUrl")
                source.add(url, path, key, tokens, client, unit=_MILLISECONDS, names=_SNAKE)


def _read_codex(source: _Source) -> None:
    """`.credentials.json`, which it uses if there is no keyring: name and hash → login."""
    path = source.home("CODEX_HOME", ".codex") / ".credentials.json"
    for key, entry in _entries(source.read(path)):
        source.add(string(entry, "server_url"), path, key, entry, entry, unit=_MILLISECONDS, names=_SNAKE)


def _read_opencode(source: _Source) -> None:
    """`mcp-auth.json`: name → login, with seconds."""
    path = source.home("XDG_DATA_HOME", ".local/share") / "opencode" / "mcp-auth.json"
    for key, entry in _entries(source.read(path)):
        tokens, client = _member(entry, "tokens"), _member(entry, "clientInfo")
        if isinstance(tokens, dict) and isinstance(client, dict):
            source.add(string(entry, "serverUrl"), path, key, tokens, client, unit=1.0, names=_CAMEL)


def _read_gemini_cli(source: _Source) -> None:
    """`mcp-oauth-tokens.json`: an array of logins. Its encrypted files are not read."""
    path = source.home("GEMINI_CLI_HOME", "") / ".gemini" / "mcp-oauth-tokens.json"
    document = source.read(path)
    for number, entry in enumerate(document if isinstance(document, list) else ()):
        tokens = _member(entry, "token")
        if isinstance(entry, dict) and isinstance(tokens, dict):
            url = string(entry, "mcpServerUrl")
            source.add(url, path, number, tokens, entry, unit=_MILLISECONDS, names=_CAMEL)


TOOLS: Mapping[str, Callable[[_Source], None]] = {
    "mcp-remote": _read_mcp_remote,
    "claude-code": _read_claude_code,
    "mcporter": _read_mcporter,
    "codex": _read_codex,
    "opencode": _read_opencode,
    "gemini-cli": _read_gemini_cli,
}
"""The programs whose files are known."""


def _member(document: object, name: str) -> object:
    return document.get(name) if isinstance(document, dict) else None


def _entries(document: object) -> Iterator[tuple[str, Json]]:
    for key, entry in document.items() if isinstance(document, dict) else ():
        if isinstance(entry, dict):
            yield key, entry


def _moment(value: object, unit: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    seconds = float(value) * unit
    return seconds if 0 < seconds < _LATEST else None


def _modified(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _spellings(url: str) -> set[str]:
    """Return how a person may have written a URL."""
    bare = url.rstrip("/")
    return {url, bare, f"{bare}/"}


def _is_same(one: str, other: str) -> bool:
    try:
        return canonical(one).rstrip("/") == canonical(other).rstrip("/")
    except ValueError:
        return False

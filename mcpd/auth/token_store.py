"""The file with all logins: private, locked, replaced atomically, and never overwritten when it is damaged.

Only the daemon that holds the lock writes it and renews tokens: an authorization server that sees one refresh
token twice ends the login. Everything here blocks on the disk; call it in a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
import msgspec

from mcpd.auth.login_encryption import CannotUnseal, KeyUnavailable, LoginKey, seal, unseal
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import MAX_TOKEN, TokenSet
from mcpd.files.atomic import remove_stale_temporaries, write_atomically
from mcpd.files.paths import UnusablePath, private_directory
from mcpd.files.regular import UnusableFile, open_regular_file, read_regular_file, read_up_to
from mcpd.model import codec, json_text

log = logging.getLogger("mcpd.auth")

# ── what is stored ────────────────────────────────────────────────────────────────────────────────────


_LATEST = 253402300800.0
"""Unix seconds. The year 10000, which cannot be formatted."""
_TOKEN = re.compile(r"[\x21-\x7e]+")


def _check_times(*moments: float | None) -> None:
    """Raises ValueError for what is no time, as in a damaged file."""
    if not all(0 <= moment < _LATEST for moment in moments if moment is not None):
        raise ValueError("impossible time")


@attrs.frozen(kw_only=True)
class StoredLogin:
    """One login: the tokens, where they are valid, and how they are renewed.

    Two servers with the same `resource`, `issuer` and `account` share it. Times are seconds since the epoch.
    """

    resource: str
    """The tokens may be sent to this URL and to paths below it (`covers`)."""
    issuer: str
    """From the validated metadata."""
    account: str
    client: ClientRegistration
    """The client that the tokens were issued to. The secret of a pre-registered client is not stored."""
    token_endpoint: str
    tokens: TokenSet
    sent_resource: str | None = None
    """The parameter `resource` of every token request (RFC 8707); None if it is not sent."""
    revocation_endpoint: str | None = None
    requested_scopes: tuple[str, ...] | None = None
    dpop_key: str | None = attrs.field(default=None, repr=False)
    """The PEM key that the tokens are bound to; None for tokens that anybody can use."""
    generation: int = 1
    """Incremented with every new access token."""
    logged_in_at: float = 0.0
    attempt_at: float | None = None
    """When a renewal of these tokens began whose outcome is not stored: the refresh token may be used up.
    Written before the request is sent."""
    ended: str | None = None
    """Why the authorization server no longer accepts the refresh token."""

    def __attrs_post_init__(self) -> None:
        """Raises ValueError for values that cannot be used, as in a damaged file."""
        tokens = self.tokens
        _check_times(self.logged_in_at, self.attempt_at, tokens.obtained_at, tokens.expires_at)
        for token in (tokens.access_token, tokens.refresh_token):
            if token is not None and (len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token)):
                raise ValueError("a token has characters that a header cannot contain, or too many")
        if self.generation < 1:
            raise ValueError("the generation must be positive")

    @property
    def id(self) -> str:
        parts = "\n".join((self.resource, self.issuer, self.account))
        return hashlib.sha256(parts.encode()).hexdigest()[:24]

    @property
    def renewed_at(self) -> float | None:
        """When the current tokens were issued, if they are not those of the login itself."""
        return self.tokens.obtained_at if self.tokens.obtained_at > self.logged_in_at else None

    def secrets(self) -> tuple[str, ...]:
        """Return everything in it that must not be shown."""
        tokens = self.tokens
        found = (tokens.access_token, tokens.refresh_token, self.client.client_secret, self.dpop_key)
        return tuple(each for each in found if each)


@attrs.frozen(kw_only=True)
class StoredLogins:
    """The contents of the file."""

    logins: Mapping[str, StoredLogin] = attrs.field(factory=dict)
    """By `StoredLogin.id`."""
    servers: Mapping[str, str] = attrs.field(factory=dict)
    """`server_key` → the id of its login, so that the first request after a start is signed already."""
    damaged: int = 0
    """How many logins of the file cannot be read."""

    def login_of(self, url: str, account: str) -> StoredLogin | None:
        """Return the login of the server at `url`."""
        return self.logins.get(self.servers.get(server_key(url, account), ""))

    def with_login(self, login: StoredLogin, url: str | None = None) -> StoredLogins:
        """Return a copy with this login, which the server at `url` uses from now on. A newer one is kept."""
        known = self.logins.get(login.id)
        if known is not None and known.generation > login.generation:
            return self
        servers = dict(self.servers)
        if url is not None:
            servers[server_key(url, login.account)] = login.id
        return attrs.evolve(self, logins={**self.logins, login.id: login}, servers=servers)

    def without_login(self, id: str) -> StoredLogins:
        return attrs.evolve(
            self,
            logins={key: login for key, login in self.logins.items() if key != id},
            servers={key: named for key, named in self.servers.items() if named != id},
        )


def server_key(url: str, account: str) -> str:
    return f"{url}\n{account}"


def to_json(logins: StoredLogins) -> dict[str, object]:
    """Return plain JSON values."""
    stored = {key: codec.unstructure(_storable(each)) for key, each in logins.logins.items()}
    return {"servers": dict(logins.servers), "logins": stored}


def from_json(document: Mapping[str, object]) -> StoredLogins:
    """Return the contents, without the logins that cannot be read. Raises ValueError if there is no list."""
    names, entries = document.get("servers", {}), document.get("logins", {})
    if not isinstance(names, dict) or not isinstance(entries, dict):
        raise ValueError("`servers` or `logins` is not an object")
    servers = {key: id for key, id in names.items() if isinstance(id, str)}
    logins: dict[str, StoredLogin] = {}
    for id, entry in entries.items():
        with suppress(ValueError):
            logins[id] = codec.structure(_without_former_members(entry), StoredLogin)
    return StoredLogins(logins=logins, servers=servers, damaged=len(entries) - len(logins))


def _without_former_members(entry: object) -> object:
    """Return a login as this version writes it. Earlier versions had more members, and two objects in it."""
    if not isinstance(entry, dict) or not isinstance(client := entry.get("client"), dict):
        return entry
    attempt, ended = entry.get("attempt"), entry.get("ended")
    found = _members_of(StoredLogin, entry) | {"client": _members_of(ClientRegistration, client)}
    if isinstance(attempt, dict) and attempt.get("generation") == entry.get("generation"):
        found["attempt_at"] = attempt.get("at")
    if isinstance(ended, dict):
        found["ended"] = ended.get("message")
    return found


def _members_of(kind: type[attrs.AttrsInstance], document: dict[str, object]) -> dict[str, object]:
    return {name: document[name] for name in attrs.fields_dict(kind) if name in document}


def _storable(login: StoredLogin) -> StoredLogin:
    """The secret of a pre-registered client is in the definition, which may refer to a secret store."""
    if login.client.origin != "pre-registered":
        return login
    return attrs.evolve(login, client=attrs.evolve(login.client, client_secret=None))


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────


VERSION = 1
SEALED_VERSION = 2
"""Of an encrypted file, which contains one of the other version."""
MAX_SIZE = 16 << 20
_MAX_VALUES = 1_000_000
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class StoreError(Exception):
    """The file cannot be used. The message names the file and what to do; it contains no secret."""


class TokenStore:
    """Use from one thread at a time. `open` first; `close` releases the lock."""

    must_be_sealed = False
    """Whether what is not encrypted is not used: others may have written it."""
    timeout = math.inf
    """Seconds that an operation may take; it is abandoned then."""
    patience = 0.0
    """Seconds for which another daemon may keep the logins while it renews one."""

    def __init__(self, state_dir: Path, key: LoginKey | None = None) -> None:
        """With `key`, the file is encrypted."""
        self.directory = state_dir / "login"
        self.path = self.directory / "logins.json"
        self.other_daemon = ""
        """Describes the daemon that holds the lock; empty if this one does."""
        self.problem = ""
        """Why the file cannot be read or written; empty if it can."""
        self.is_locked = False
        """Whether the file can be read as soon as its key is available, as with a locked keyring."""
        self._lock: int | None = None
        self._key = key
        self._is_plain = False
        """Whether the file was last read without decrypting it."""

    @property
    def is_keeper(self) -> bool:
        """Whether this daemon may renew tokens and write the file."""
        return self._lock is not None

    def exists(self) -> bool:
        """Return whether anything was ever stored. Creates nothing."""
        return os.path.lexists(self.path)

    def open(self) -> StoredLogins:
        """Take the lock if it is free, and return the contents; empty if they cannot be read. Never raises.

        May be called again, to find out whether the other daemon has ended.
        """
        if self._lock is None:
            try:
                private_directory(str(self.directory))
                self._take_lock()
            except (OSError, UnusablePath) as error:
                self._report(f"cannot use {self.directory} for logins: {_reason(error)}")
        if self.is_keeper:
            remove_stale_temporaries(self.path)
        try:
            found = self.read()
            if self._key is not None and self._is_plain and self.is_keeper:
                self.change(lambda contents: contents)  # it was not encrypted before
        except StoreError:
            return StoredLogins()
        return found

    def claim(self) -> None:
        """Become the one that may renew tokens and write, if no other daemon is. Never raises."""
        self.open()

    def check_key(self) -> str:
        """Return why the key of the file is unavailable now; empty if it is not, or if there is none."""
        try:
            if self._key is not None:
                self._key.read(create=not self.exists())
        except KeyUnavailable as error:
            return f"cannot encrypt logins: {error}"
        return ""

    def read(self) -> StoredLogins:
        """Return the contents; empty if there is no file. Raises StoreError, which has been logged."""
        try:
            contents = self._read()
        except StoreError as error:
            self._report(str(error))
            raise
        self.is_locked = False
        if self.is_keeper or self.other_daemon:  # otherwise the directory cannot be used
            what = f"{contents.damaged} of the logins in {self.path} cannot be read"
            self._report(f"{what}; log in to their servers again" if contents.damaged else "")
        return contents

    def change(self, edit: Callable[[StoredLogins], StoredLogins]) -> StoredLogins:
        """Read the file, replace it by what `edit` returns, and return that. Durable when it returns.

        A copy is kept of a file that is damaged. Raises StoreError with nothing written.
        """
        if not self.is_keeper:
            self.claim()
        if not self.is_keeper:
            raise StoreError(
                self.problem or f"{self.other_daemon} keeps the logins; this daemon only reads them"
            )
        try:
            before = self._read()
            if before.damaged:
                self._keep_copy()
        except _Damaged:
            self._keep_copy()
            before = StoredLogins()
        except StoreError as error:
            self._report(str(error))
            raise
        after = attrs.evolve(edit(before), damaged=0)
        data = msgspec.json.format(msgspec.json.encode({"version": VERSION, **to_json(after)}), indent=1)
        try:
            if self._key is not None:
                sealed = {"version": SEALED_VERSION, "sealed": seal(data, self._key.read(create=True))}
                data = msgspec.json.encode(sealed)
            self._save(data)
        except (OSError, KeyUnavailable, CannotUnseal) as error:
            what = "write" if isinstance(error, OSError) else "encrypt"
            message = f"cannot {what} {self.path}: {_reason(error)}; logins are kept in memory"
            self._report(message)
            raise StoreError(message) from None
        self._report("")
        return after

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def _load(self) -> bytes | None:
        """Return what is stored; None if nothing is. Raises StoreError."""
        try:
            with open_regular_file(self.path) as (file, found):
                self._check_access(found)
                return read_up_to(file, MAX_SIZE, self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            fix = "move it away" if isinstance(error, UnusableFile) else "check its permissions"
            raise StoreError(f"cannot read {self.path}: {_reason(error)}; {fix}") from None

    def _save(self, data: bytes) -> None:
        """Replace what is stored. Raises OSError."""
        write_atomically(self.path, data, 0o600)

    def _read(self) -> StoredLogins:
        data = self._load()
        if data is None:
            return StoredLogins()
        try:
            json_text.check_size(data, _MAX_VALUES, MAX_SIZE)
            document = msgspec.json.decode(data)
            if not isinstance(document, dict) or not isinstance(document.get("version"), int):
                raise ValueError("it has no version")
        except (ValueError, msgspec.MsgspecError, RecursionError, json_text.JsonTooLarge):
            raise self._damaged() from None
        self._is_plain = document["version"] != SEALED_VERSION
        if self._is_plain and self.must_be_sealed:
            raise self._damaged()
        if document["version"] == SEALED_VERSION:
            document = self._unsealed(document)
        if document["version"] != VERSION:
            raise StoreError(
                f"{self.path} was written by another version of mcpd "
                f"(format {str(document['version'])[:20]}); it is not used or changed"
            )
        try:
            return from_json(document)
        except ValueError:
            raise self._damaged() from None

    def _unsealed(self, document: Mapping[str, object]) -> dict[str, object]:
        """Return the document that is encrypted in another. Raises StoreError; the file is kept."""
        if self._key is None:
            raise StoreError(
                f"{self.path} is encrypted; set `loginStorage` as it was, or move it away and log in again"
            )
        sealed = document.get("sealed")
        try:
            data = unseal(sealed if isinstance(sealed, dict) else {}, self._key.read())
            inner: dict[str, object] = msgspec.json.decode(data)
        except KeyUnavailable as error:
            self.is_locked = self._key.may_appear
            raise StoreError(f"cannot decrypt {self.path}: {error}") from None
        except (CannotUnseal, msgspec.MsgspecError) as error:
            message = f"cannot decrypt {self.path}: {error}; move it away to start a new file"
            raise StoreError(message) from None
        return inner

    def _damaged(self) -> _Damaged:
        return _Damaged(
            f"{self.path} is damaged, so its logins are not used; it is kept. "
            "Log in again to start a new file"
        )

    def _check_access(self, found: os.stat_result) -> None:
        """Refuse a file that others may have read or written. Raises StoreError."""
        if found.st_uid != os.getuid():
            raise StoreError(
                f"{self.path} belongs to another user ({found.st_uid}), so it is not used; move it away"
            )
        if found.st_mode & _GROUP_AND_OTHERS:
            raise StoreError(
                f"other users can access {self.path}, so it is not used; if nobody else has read it, run: "
                f"chmod 600 {self.path}"
            )

    def _keep_copy(self) -> None:
        """Keep a damaged file that is going to be replaced. Raises StoreError."""
        kept = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        try:
            write_atomically(kept, read_regular_file(self.path, MAX_SIZE), 0o600)
        except OSError as error:
            raise StoreError(f"cannot copy the damaged {self.path}: {_reason(error)}") from None
        log.warning("the damaged file of logins is kept as %s", kept)

    # ── the lock ────────────────────────────────────────────────────────────────────────────────

    def _take_lock(self) -> None:
        """Take the lock, or note who holds it. The number in the file is used for messages only."""
        path = self.directory / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(handle, 32, 0).strip()
            os.close(handle)
            number = f" (process {int(pid)})" if pid.isdigit() else ""
            self.other_daemon = f"another mcpd{number}"
            return
        with suppress(OSError):  # a full disk
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        self._lock, self.other_daemon = handle, ""

    def _report(self, problem: str) -> None:
        """Note a problem, or that there is none, and log it once."""
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


class _Damaged(StoreError):
    """The file is not what mcpd writes."""


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

"""Where the daemon's files are: the XDG directories, the socket, and directories that are ours alone.

Standard library only and cheap to import: the client pays for it on every run. Nothing here is created
except by `private_directory` and `socket_directory`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

MAX_SOCKET_PATH = 107
"""Bytes that fit into `sockaddr_un.sun_path` (108) with its closing NUL."""

_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UnusablePath(Exception):
    """A path that must not or cannot be used; the message says which, why and what to do.

    Defined here and not in `model.errors`, which costs the client the import of attrs.
    """


def socket_path(environ: Mapping[str, str]) -> str:
    """The absolute path of the daemon's socket, the same for daemon and client.

    `$MCPD_SOCKET`, else `$XDG_RUNTIME_DIR/mcpd/mcpd.sock`, else `/tmp/mcpd-<uid>/mcpd.sock`. Never below
    `$TMPDIR`: editors and shells disagree about that one, and would each talk to a daemon of their own.
    Raises UnusablePath when it is too long, or when somebody else made the directory below /tmp.
    """
    explicit = environ.get("MCPD_SOCKET")
    path = os.path.abspath(explicit) if explicit else os.path.join(runtime_dir(environ), "mcpd.sock")
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        raise UnusablePath(
            f"the socket path is {length} bytes long, and the system allows {MAX_SOCKET_PATH}: {path}; "
            "set MCPD_SOCKET to a shorter one"
        )
    return path


def runtime_dir(environ: Mapping[str, str]) -> str:
    """For what ends with the login session: the socket, its lock, the marks of running instances.

    An `$XDG_RUNTIME_DIR` that is another user's (`su` keeps it), or that is missing and that we could not
    make, is passed over for `/tmp/mcpd-<uid>`. Raises UnusablePath if that one exists and is not ours alone.
    """
    base = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and _is_owned_or_creatable(base):
        return os.path.join(base, "mcpd")
    return _tmp_fallback()


def config_dir(environ: Mapping[str, str]) -> str:
    """`$XDG_CONFIG_HOME/mcpd`: what the user wrote."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def state_dir(environ: Mapping[str, str]) -> str:
    """`$XDG_STATE_HOME/mcpd`: logs, toggles, approvals."""
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def cache_dir(environ: Mapping[str, str]) -> str:
    """`$XDG_CACHE_HOME/mcpd`: what can be fetched again."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def private_directory(path: str) -> str:
    """Make `path` (one of our own directories) exist with mode 0700, and return it.

    One that exists keeps its content and is tightened to 0700. Raises UnusablePath for a symbolic link,
    for what is no directory, for another user's, for a shared one (sticky, such as /tmp), and where it
    cannot be made.
    """
    try:
        # Directories in between are made 0700 too, as the XDG specification asks.
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UnusablePath(f"cannot make the directory {path}: {error.strerror}") from None
    found = _check_owned_directory(path)
    if stat.S_IMODE(found.st_mode) & _GROUP_AND_OTHERS:
        if found.st_mode & stat.S_ISVTX:
            raise UnusablePath(f"{path} is shared with other users; choose a directory inside it")
        try:
            os.chmod(path, 0o700)
        except OSError as error:
            raise UnusablePath(f"{path} is open to others and stays so: {error.strerror}") from None
    return path


def socket_directory(socket: str) -> str:
    """Make the directory of a socket fit to hold it, and return it.

    A missing one is made 0700. One that exists may be a directory of the user's that we have no business
    changing (`MCPD_SOCKET=~/m.sock`): it is refused with UnusablePath if others may write there, since
    they could put a socket of their own in our place, and is left as it is otherwise.
    """
    directory = os.path.dirname(os.path.abspath(socket))
    if not os.path.lexists(directory):
        return private_directory(directory)
    found = _check_owned_directory(directory)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusablePath(
            f"others may write to {directory}, so the socket cannot be there; "
            f"put it into a directory of its own: {os.path.join(directory, 'mcpd', os.path.basename(socket))}"
        )
    return directory


def _xdg(environ: Mapping[str, str], variable: str, default: str) -> str:
    base = environ.get(variable, "")
    if not os.path.isabs(base):  # the specification: a relative one is invalid and to be ignored
        home = _home(environ)
        if home is None:
            return os.path.join(_tmp_fallback(), variable.removeprefix("XDG_").removesuffix("_HOME").lower())
        base = os.path.join(home, default)
    return os.path.join(base, "mcpd")


def _home(environ: Mapping[str, str]) -> str | None:
    """`$HOME`, else the user database's word, else None (a container with a number for a user)."""
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd  # only where HOME is missing

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
    return home if os.path.isdir(home) else None


def _tmp_fallback() -> str:
    path = f"/tmp/mcpd-{os.getuid()}"  # noqa: S108 - checked here, made 0700 by private_directory
    if os.path.lexists(path):
        found = _check_owned_directory(path)
        if stat.S_IMODE(found.st_mode) & _GROUP_AND_OTHERS:
            raise UnusablePath(f"{path} is open to other users; chmod 700 it, or set MCPD_SOCKET")
    return path


def _is_owned_or_creatable(directory: str) -> bool:
    try:
        return os.stat(directory).st_uid == os.getuid()
    except FileNotFoundError:
        return os.access(os.path.dirname(directory.rstrip("/")), os.W_OK)
    except OSError:
        return False


def _check_owned_directory(path: str) -> os.stat_result:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise UnusablePath(f"cannot look at {path}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise UnusablePath(f"{path} is a symbolic link; name the directory it points to instead")
    if not stat.S_ISDIR(found.st_mode):
        raise UnusablePath(f"{path} is not a directory; move it away")
    if found.st_uid != os.getuid():
        raise UnusablePath(
            f"{path} belongs to user {found.st_uid}, not to us ({os.getuid()}); "
            "set MCPD_SOCKET to a path in a directory of your own"
        )
    return found

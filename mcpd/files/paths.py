"""The paths of mcpd's files: XDG directories, the socket, and private directories.

Uses only the standard library, because mcpctl imports it on every run. This is why platformdirs is not used;
it also lacks the fallback to /tmp and the ownership checks. Only `private_directory` and `socket_directory`
create anything.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

MAX_SOCKET_PATH = 107
"""Bytes: `sockaddr_un.sun_path` has 108, including the final NUL."""

_RUNTIME_DIRECTORIES = "/run/user"
"""Where pam_systemd(8) creates the runtime directory of each user that has logged in."""
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UnusablePath(Exception):
    """A path cannot be used; the message contains the path, the reason and what to do.

    It is not in `model.errors`, because that imports attrs, which mcpctl avoids.
    """


def socket_path(environ: Mapping[str, str]) -> str:
    """Return the absolute path of the daemon's socket, the same for daemon and clients.

    `$MCPD_SOCKET`, else `mcpd.sock` in `runtime_dir`. `$TMPDIR` is not used: it can differ between editors
    and shells, which would then use different daemons. Raises UnusablePath if the path is too long, or if
    another user owns the directory in /tmp.
    """
    explicit = environ.get("MCPD_SOCKET")
    path = os.path.abspath(explicit) if explicit else os.path.join(runtime_dir(environ), "mcpd.sock")
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        raise UnusablePath(
            f"the socket path is {length} bytes long, and the system allows {MAX_SOCKET_PATH}: {path}; "
            "set MCPD_SOCKET to a shorter path"
        )
    return path


def runtime_dir(environ: Mapping[str, str]) -> str:
    """Return the directory for the socket, its lock, and the records of running instances.

    It is `$XDG_RUNTIME_DIR/mcpd`. If that variable is not set (clients that use an SDK start `mcpctl bridge`
    without it), belongs to another user (`su` keeps it), or names a directory that cannot be created, it is
    `mcpd` in the directory that a login sets it to, `/run/user/<uid>`. Without one, it is `/tmp/mcpd-<uid>`.
    Raises UnusablePath if that exists and is not private to this user.
    """
    base = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and _is_owned_or_creatable(base):
        return os.path.join(base, "mcpd")
    of_login = os.path.join(_RUNTIME_DIRECTORIES, str(os.getuid()))
    if os.path.isdir(of_login) and _is_owned_or_creatable(of_login):
        return os.path.join(of_login, "mcpd")
    return _tmp_fallback()


def config_dir(environ: Mapping[str, str]) -> str:
    """Return `$XDG_CONFIG_HOME/mcpd`, for files that the user writes."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def state_dir(environ: Mapping[str, str]) -> str:
    """Return `$XDG_STATE_HOME/mcpd`, for logs and state."""
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def cache_dir(environ: Mapping[str, str]) -> str:
    """Return `$XDG_CACHE_HOME/mcpd`, for data that can be fetched again."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def private_directory(path: str) -> str:
    """Create `path`, or change an existing directory to mode 0700, and return it.

    Raises UnusablePath if it is a symbolic link, not a directory, owned by another user, shared (sticky,
    such as /tmp), or cannot be created.
    """
    try:
        # Parent directories get mode 0700, too, as the XDG Base Directory Specification requires.
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UnusablePath(f"cannot create the directory {path}: {error.strerror}") from None
    found = _check_owned_directory(path)
    if stat.S_IMODE(found.st_mode) & _GROUP_AND_OTHERS:
        if found.st_mode & stat.S_ISVTX:
            raise UnusablePath(f"{path} is shared with other users; choose a directory inside it")
        try:
            os.chmod(path, 0o700)
        except OSError as error:
            raise UnusablePath(f"cannot remove other users' access to {path}: {error.strerror}") from None
    return path


def socket_directory(socket: str) -> str:
    """Create or check the directory of a socket, and return it.

    A missing directory is created with mode 0700. An existing one may be any directory of the user
    (`MCPD_SOCKET=~/m.sock`) and is not changed. Raises UnusablePath if other users can write to it, since
    they could replace the socket.
    """
    directory = os.path.dirname(os.path.abspath(socket))
    if not os.path.lexists(directory):
        return private_directory(directory)
    found = _check_owned_directory(directory)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusablePath(
            f"other users can write to {directory}, so it cannot contain the socket; "
            f"use a separate directory: {os.path.join(directory, 'mcpd', os.path.basename(socket))}"
        )
    return directory


def _xdg(environ: Mapping[str, str], variable: str, default: str) -> str:
    base = environ.get(variable, "")
    if not os.path.isabs(base):  # the XDG specification requires ignoring relative paths
        home = _home(environ)
        if home is None:
            return os.path.join(_tmp_fallback(), variable.removeprefix("XDG_").removesuffix("_HOME").lower())
        base = os.path.join(home, default)
    return os.path.join(base, "mcpd")


def _home(environ: Mapping[str, str]) -> str | None:
    """Return `$HOME`, else the home in the user database, else None (a container without user names)."""
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
            raise UnusablePath(f"other users can access {path}; run chmod 700 on it, or set MCPD_SOCKET")
    return path


def _is_owned_or_creatable(directory: str) -> bool:
    try:
        return os.stat(directory).st_uid == os.getuid()
    except FileNotFoundError:
        return os.access(os.path.dirname(directory.rstrip("/")), os.W_OK)
    except OSError:
        return False


def give_back(path: str) -> str:
    """Return the command that gives a directory to this user, usually after a `sudo mcpctl`."""
    return f"sudo chown -R {os.getuid()} {path}"


def _use(path: str, place: str) -> str:
    """Return which variable to set for `place` to be used instead of one of mcpd's directories."""
    for variable, default in (
        ("XDG_STATE_HOME", ".local/state"),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_CACHE_HOME", ".cache"),
    ):
        if f"{path}/".startswith(f"{_xdg(os.environ, variable, default)}/"):
            return f"set {variable} to {place.removesuffix('/mcpd')}"
    return f"set MCPD_SOCKET to a path in {place}"


def _check_owned_directory(path: str) -> os.stat_result:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise UnusablePath(f"cannot access {path}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        real = os.path.realpath(path)
        raise UnusablePath(
            f"{path} is a symbolic link; use the directory it points to instead: {_use(path, real)}"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise UnusablePath(f"{path} is not a directory; move it away")
    if found.st_uid != os.getuid():
        raise UnusablePath(
            f"{path} belongs to user {found.st_uid}, not to you ({os.getuid()}); "
            f"{give_back(path)}, or {_use(path, 'a directory of your own')}"
        )
    return found

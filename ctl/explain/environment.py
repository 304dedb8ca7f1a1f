"""The environment of a login shell, and how that of a server differs from it.

A service runs without the environment of a terminal, which is the most common cause of "works in my
terminal". Only names of variables are returned, because a value may be secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from mcpd.config.masking import is_secret_name

TIMEOUT = 5.0
"""Seconds. Some shells take two to start."""
_MARK = "__mcpd_environment__"
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


def login_environment(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Start an interactive login shell and return its variables; None if it fails or takes longer than 5 s.

    The shell runs the user's startup files, as in every new terminal.
    """
    import signal
    import subprocess

    shell = environ.get("SHELL") or "/bin/sh"
    script = f"printf %s {_MARK}; env -0; printf %s {_MARK}"
    bare = {name: environ[name] for name in _KEPT if name in environ}
    try:
        process = subprocess.Popen(
            [shell, "-l", "-i", "-c", script],
            env={**bare, "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    with process:
        try:
            out, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as late:
            # The output may be complete: a background process of a startup file keeps the pipe open.
            out = late.output or b""
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    parts = out.decode("utf-8", "surrogateescape").split(_MARK)
    if len(parts) < 3:
        return None
    pairs = (entry.partition("=") for entry in parts[1].split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def missing_directories(login_path: str, path: str) -> list[str]:
    """Return existing directories of the shell's PATH that `path` lacks, except `sbin`."""
    known = set(path.split(":"))
    entries = dict.fromkeys(entry for entry in login_path.split(":") if os.path.isabs(entry))
    lacking = (entry for entry in entries if entry not in known and not entry.endswith("/sbin"))
    return [entry for entry in lacking if os.path.isdir(entry)]


_KNOWN = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|\w*CA_BUNDLE|NODE_TLS_REJECT_UNAUTHORIZED|\w*_CERT",
        r"(https?|all|no|ftp)_proxy",
        r"(NVM|FNM|VOLTA|ASDF|MISE|PYENV|RBENV|NODENV|CONDA|SDKMAN)_\w+|VIRTUAL_ENV",
        r"(NODE|NPM|PNPM|BUN|DENO|PYTHON|PIP|UV|JAVA|GO|CARGO|RUSTUP|GEM|RUBY|PERL|DOTNET|DOCKER|LD)_?(\w*_)?"
        r"(PATH|HOME|DIR|ROOT|OPTIONS|OPTS|HOST|CONTEXT|CACHE|CONFIG\w*|REGISTRY|INDEX\w*)\w*",
    )
)
"""Variables that programs are known to need, those first that most often break servers: certificates,
proxies, version managers, settings of runtimes. Most others belong to the terminal or its session."""
_RARELY_MATTER = re.compile(
    r"LANG|LANGUAGE|LC_\w+|TZ|XDG_\w+|DBUS_\w+|SSH_\w+|DISPLAY|WAYLAND_DISPLAY|DESKTOP_SESSION|GPG_\w+"
    r"|EDITOR|VISUAL|PAGER|LESS\w*|HOSTNAME|HOME|USER|LOGNAME|SHELL|TMPDIR|HIST\w+|LS_\w+"
)
_SHELL_VARIABLES = "_ SHLVL PWD OLDPWD PS1 PS2 TERM LS_COLORS COLUMNS LINES HISTFILE MAIL PATH"
_IGNORED = frozenset(_SHELL_VARIABLES.split())


def missing_variables(
    shell: Mapping[str, str], terminal: Mapping[str, str], server: Iterable[str], stderr: str
) -> list[str]:
    """Return the names of variables that are not among those of a `server`, most probable cause first.

    `shell` is the environment of a new login shell. Of `terminal`, which also has what was exported by hand
    and much that belongs to the session, only the variables count that programs are known to need.
    """
    lacking = (shell.keys() | filter(_is_known, terminal)) - set(server)
    return _by_probability((name for name in lacking if not name.startswith("BASH_FUNC")), stderr)


def different_variables(
    shell: Mapping[str, str], terminal: Mapping[str, str], inherited: Mapping[str, str], stderr: str
) -> list[str]:
    """Return the names of variables that a server has inherited from mcpd with another value than a terminal
    has, most probable cause first."""
    ours = {**shell, **{name: text for name, text in terminal.items() if _is_known(name)}}
    return _by_probability((name for name, text in inherited.items() if ours.get(name, text) != text), stderr)


def _is_known(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in _KNOWN)


def _by_probability(names: Iterable[str], stderr: str) -> list[str]:
    """Sort names: those that stderr mentions, known ones, secrets, others, those that rarely matter."""
    mentioned = set(re.findall(r"\w+", stderr))

    def rank(name: str) -> tuple[int, str]:
        if name in mentioned:
            return 0, name
        if _RARELY_MATTER.fullmatch(name):
            return 9, name
        known = next((place for place, pattern in enumerate(_KNOWN) if pattern.fullmatch(name)), None)
        return (7 + (not is_secret_name(name)) if known is None else 1 + known), name

    return sorted(set(names) - _IGNORED, key=rank)

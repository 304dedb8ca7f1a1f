"""Recognizes package runners: commands that download a program and run it (such as `npx` or `docker run`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs


@attrs.frozen
class PackageRunner:
    """A command line that downloads and runs a package."""

    name: str
    """The command for display: `npx`, `pnpm dlx`, `docker run`."""
    package: str
    """The package or image; empty if unknown."""
    container: bool = False
    """The server is not a descendant of mcpd, so only the runner's output shows the progress."""

    @property
    def progress_message(self) -> str:
        """`npx is installing or starting @scope/server`: from outside, the two look the same."""
        verb = "pulling" if self.container else "installing"
        return f"{self.name} is {verb} or starting {self.package or 'its package'}"

    @property
    def failure_message(self) -> str:
        """`npx could not start @scope/server`: the download or the start failed."""
        return f"{self.name} could not start {self.package or 'its package'}"


_RUNNERS = ("npx", "pnpx", "bunx", "uvx")
_RUNNERS_WITH_SUBCOMMAND = {
    "npm": ("exec", "x"),
    "pnpm": ("dlx",),
    "yarn": ("dlx",),
    "bun": ("x",),
    "pipx": ("run",),
    "uv": ("run", "tool run"),
    "docker": ("run", "container run"),
    "podman": ("run", "container run"),
    "nerdctl": ("run",),
}
_CONTAINERS = ("docker", "podman", "nerdctl")
_PACKAGE_OPTIONS = ("-p", "--package", "--from", "--spec")
"""Options whose value is the package. For uv, `-p` is the Python version instead."""
_FLAG_WORDS = (
    "-y --yes -q --quiet --silent -s -v --verbose --offline --prefer-offline --no-install --bun --isolated "
    "--no-cache --refresh --no-project --no-config --native-tls --locked --frozen --managed-python "
    "--ignore-existing --rm -i --interactive -t --tty -it -ti --init --privileged --read-only -d"
)
_FLAGS = frozenset(_FLAG_WORDS.split())
"""Options without a value. Other options take the next word, unless they are written with `=`."""


def find_runner(command: str, args: Sequence[str]) -> PackageRunner | None:
    """Return the package runner that a command line uses, or None for an ordinary program."""
    name = os.path.basename(command).removesuffix(".cmd").removesuffix(".exe")
    if name in _RUNNERS:
        return PackageRunner(name, _package_name(name, args))
    words = list(args)
    while words and words[0].startswith("-") and words[0] in _FLAGS:
        del words[0]
    for verb in _RUNNERS_WITH_SUBCOMMAND.get(name, ()):
        length = len(verb.split())
        if words[:length] == verb.split():
            return PackageRunner(f"{name} {verb}", _package_name(name, words[length:]), name in _CONTAINERS)
    return None


def _package_name(name: str, args: Sequence[str]) -> str:
    found, skip, option = "", False, ""
    for word in args:
        if skip:
            skip = False
            if option in _PACKAGE_OPTIONS and not (option == "-p" and name.startswith("uv")):
                return word
        elif word == "--":
            continue
        elif word.startswith("-"):
            option, equals, value = word.partition("=")
            if equals and option in _PACKAGE_OPTIONS:
                return value
            skip = not equals and (option not in _FLAGS or (option == "-v" and name in _CONTAINERS))
        else:
            found = word
            break
    return found


_INTERPRETERS = ("env", "node", "python", "sh", "bash", "dash")
"""A script with `#!/usr/bin/env node` appears as `env node npx`, then as `node npx`."""


def is_runner(argv: Sequence[str]) -> bool:
    """Return whether this is the command line of a package runner, not of the program that it starts.

    npm changes its process title (`npm exec …`), and scripts appear as arguments of their interpreter.
    """
    if not argv:
        return True  # during an exec, the command line is empty
    first = argv[0].split(" ")
    names = [os.path.basename(word) for word in (*first, *argv[1:5])]
    while names and names[0].startswith((*_INTERPRETERS, "-")):
        names = names[1:]
    name = names[0] if names else ""
    for suffix in (".js", ".cjs", ".mjs", "-cli"):
        name = name.removesuffix(suffix)
    if name in ("bun", "uv") and len(names) > 1:  # `bun server.js` is a server
        return any(word in ("x", "run", "tool") for word in names[1:])
    return name in (*_RUNNERS, *_RUNNERS_WITH_SUBCOMMAND, "corepack", "volta-shim", "")

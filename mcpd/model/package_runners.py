"""Package runners: commands that fetch a program before they run it (`npx`, `uvx`, `docker run` …)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs


@attrs.frozen
class PackageRunner:
    """How a server is fetched and run."""

    name: str
    """For people: `npx`, `pnpm dlx`, `docker run`."""
    package: str
    """What it fetches; empty when that cannot be told."""
    container: bool = False
    """The server is no descendant of ours, so that only the runner's own words tell how far it is."""

    @property
    def progress_message(self) -> str:
        """`npx is installing @scope/server`."""
        verb = "pulling" if self.container else "installing"
        return f"{self.name} is {verb} {self.package or 'its package'}"

    @property
    def failure_message(self) -> str:
        """`npx could not start @scope/server`: fetched or not, it never ran for long enough to be seen."""
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
"""Options whose value is the package, where it is not what is run; `-p` is a Python version for uv."""
_FLAG_WORDS = (
    "-y --yes -q --quiet --silent -s -v --verbose --offline --prefer-offline --no-install --bun --isolated "
    "--no-cache --refresh --no-project --no-config --native-tls --locked --frozen --managed-python "
    "--ignore-existing --rm -i --interactive -t --tty -it -ti --init --privileged --read-only -d"
)
_FLAGS = frozenset(_FLAG_WORDS.split())
"""Options without a value of their own; of others the next word is one, unless they are written with `=`."""


def find_runner(command: str, args: Sequence[str]) -> PackageRunner | None:
    """What a command line fetches before it runs it; None for an ordinary program."""
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
"""`#!/usr/bin/env node` is all three for a moment: `env node npx`, `node npx`."""


def is_runner(argv: Sequence[str]) -> bool:
    """Whether a process with this command line is a package runner (still), and not what it has started.

    npm gives its process another title (`npm exec …`), scripts stand behind their interpreter.
    """
    if not argv:
        return True  # in the middle of an exec: what it becomes is to be seen
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

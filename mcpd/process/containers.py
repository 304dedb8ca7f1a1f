"""Ends the containers that a command starts with `docker run`, `docker compose run` or another engine.

A container is a child of its engine, so no signal to the command's processes reaches it, and the engine keeps
it when the command is killed. Therefore the engine writes the container's ID to a file (`--cidfile`), or with
`compose`, the file has the name that the container gets, and a script beside this file kills the container.
The script needs nothing of the daemon: the guardian runs it if the daemon is killed, and the next daemon if
the guardian was killed, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from shlex import quote

import msgspec
import trio

from mcpd.files.regular import open_regular_file
from mcpd.process.labels import start_process

CONTAINERS = "containers"
"""The directory for the files with IDs: a directory for each instance of the daemon, with one for each
command."""
ENGINES = ("docker", "podman", "nerdctl")
_LAUNCHERS = (
    "env",
    "nice",
    "ionice",
    "nohup",
    "setsid",
    "stdbuf",
    "sudo",
    "doas",
    "timeout",
    "flatpak-spawn",
)
"""Programs that run the command in their arguments."""
_SHELL_TEXT = re.compile(r"-[a-z]*c")
"""The option of a shell whose value is a script."""
_RUN_IN_TEXT = re.compile(
    r"""(?:^|(?<=[\s;&|(`'"]))((?:[\w./~-]*/)?(?:docker|podman|nerdctl)"""
    r"""(?:\s+-[^\s;&|]+(?:\s+[^\s;&|-][^\s;&|]*)?)*?)\s+(?:container\s+)?run(?=\s)"""
)
_OWN_FILE = re.compile(r"--cidfile[=\s]\s*([^\s;&|]+)")
_ENGINE_VARIABLES = re.compile(
    r"PATH|HOME|USER|(?:XDG|SSL|DOCKER|CONTAINERS?|CONTAINERD|NERDCTL)_(?!AUTH)\w*"
)
"""What an engine's client needs to reach its engine. `DOCKER_AUTH_CONFIG` is secret, and not needed."""
_MAX_ID = 128
END_TIMEOUT = 10.0
"""Seconds that an engine may take to end containers."""

_SCRIPT = """\
{environment}
cd {cwd}
for file in {files}; do
    [ -f "$file" ] && id=$(head -c {size} "$file") || continue
    case $id in '' | {before}) continue ;; esac
    {engine} kill "$id"
    {remove}
    rm -f "$file"
done
rm -rf {directory}
rmdir {parent}
"""


class Containers(msgspec.Struct, frozen=True):
    """The containers of one command."""

    engine: str
    """The command line of the engine's client, without `run`."""
    directory: str
    """A private directory for the files with IDs, and for the script."""
    own_file: str
    """The file for the ID in the definition itself; empty if there is none."""
    name: str
    """The name that `compose` gives to the container; empty if the engine writes its ID."""
    removes: bool
    """Whether the engine is to remove a container that has ended (`--rm`)."""
    environment: Mapping[str, str]
    cwd: str

    @property
    def _script(self) -> str:
        return os.path.join(self.directory, "end.sh")

    def prepare(self) -> None:
        """Write the script, before the command is started. Raises OSError."""
        os.makedirs(self.directory, mode=0o700)
        text = _SCRIPT.format(
            environment="\n".join(f"export {name}={quote(text)}" for name, text in self.environment.items()),
            cwd=quote(self.cwd),
            files=quote(self.own_file) if self.own_file else f"{quote(self.directory)}/id*",
            before=quote(_read_id(self.own_file) or "none") if self.own_file else "none",
            size=_MAX_ID,
            engine=self.engine,
            remove=f'{self.engine} rm -f "$id"' if self.removes else ":",
            directory=quote(self.directory),
            parent=quote(os.path.dirname(self.directory)),
        )
        with open(os.open(self._script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        if self.name:
            with open(f"{self.directory}/id", "x") as file:
                file.write(self.name)

    async def end(self) -> None:
        """Kill the containers. While that runs, the processes of their engine must not be killed."""
        await _run(self._script)

    def describe(self) -> tuple[str, ...]:
        """Return the containers that were started, such as `docker 3f2a9c1b7d04`."""
        files = [self.own_file]
        if not self.own_file:
            with suppress(OSError):
                names = sorted(os.listdir(self.directory))
                files = [os.path.join(self.directory, name) for name in names if name.startswith("id")]
        name = next(each for each in ENGINES if each in self.engine)
        return tuple(f"{name} {id[:12]}" for file in files if (id := _read_id(file)))


def _read_id(path: str) -> str:
    try:
        with open_regular_file(path) as (file, _):
            return file.read(_MAX_ID).decode("ascii", "replace").strip()
    except (OSError, ValueError):
        return ""


def track_containers(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, directory: str
) -> tuple[tuple[str, ...], Containers | None]:
    """Return the command line with an option that makes the engine write the ID of each container to a file
    in `directory`, and these containers; the same command line and None if it starts none.

    A definition that has this option itself keeps it. A Docker client in a snap cannot write such a file.
    """
    words, name = list(argv), ""
    found = _find_run(words)
    if found is not None:
        first, place = found
        options, engine = " ".join(words[place:]), " ".join(map(quote, words[:first]))
        if words[first] == "compose":
            if re.search(r"(?:^|\s)--name[=\s]", options):
                return tuple(words), None  # it may be the option of the program in the container
            own, name = None, "-".join(("mcpd", *directory.split("/")[-2:]))
            words.insert(place, f"--name={name}")
        elif (own := _OWN_FILE.search(options)) is None:
            words.insert(place, f"--cidfile={directory}/id")
    else:
        for place, word in enumerate(words[1:], 1):
            match = _RUN_IN_TEXT.search(word)
            if match is not None and _SHELL_TEXT.fullmatch(words[place - 1]):
                break
        else:
            return tuple(words), None
        engine, options = match[1], word[match.end() :]
        own = _OWN_FILE.search(options)
        if own is None:  # a script may start several containers, and each needs a file of its own
            file = f"$(mktemp -u {quote(directory)}/id.XXXXXXXX)"
            words[place] = _RUN_IN_TEXT.sub(lambda run: f"{run[0]} --cidfile={file}", word)
    if _is_snap(engine, env):
        return tuple(argv), None
    containers = Containers(
        engine=engine,
        directory=directory,
        own_file=os.path.join(cwd, own[1].strip("'\"")) if own is not None else "",
        name=name,
        removes=re.search(r"(?:^|\s)--rm(?:=true)?(?:\s|$)", options) is not None,
        environment={name: text for name, text in env.items() if _ENGINE_VARIABLES.fullmatch(name)},
        cwd=cwd,
    )
    return tuple(words), containers


def _find_run(words: Sequence[str]) -> tuple[int, int] | None:
    """Return how many words are the engine's client with its options, and the place after `run`."""
    names = [os.path.basename(word) for word in words]
    start = 0
    if names[0] in _LAUNCHERS:
        start = next((place for place, name in enumerate(names) if name in ENGINES), 0)
    if names[start] not in ENGINES:
        return None
    client = 0
    for place in range(start + 1, len(words)):
        word, before = words[place], words[place - 1]
        if word == "run":
            return client or place, place + 1
        if word in ("container", "compose") and not client:
            client = place
        elif not (word.startswith("-") or before.startswith("-")):
            return None
    return None


def _is_snap(engine: str, env: Mapping[str, str]) -> bool:
    found = shutil.which(engine.split(" ")[0], path=env.get("PATH")) or ""
    return os.path.realpath(found) == "/usr/bin/snap"


async def end_forgotten(runtime: str, instances: str) -> None:
    """End the containers of daemons that ended without doing that.

    `instances`: the directory with the records of those that run.
    """
    directory = os.path.join(runtime, CONTAINERS)
    with suppress(OSError):
        for instance in set(os.listdir(directory)) - set(os.listdir(instances)):
            for number in os.listdir(os.path.join(directory, instance)):
                await _run(os.path.join(directory, instance, number, "end.sh"))


async def _run(script: str) -> None:
    """Run a script; after END_TIMEOUT, it goes on in the background."""
    process = await start_process(
        ["/bin/sh", script],
        None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with trio.move_on_after(END_TIMEOUT):
        await process.wait()

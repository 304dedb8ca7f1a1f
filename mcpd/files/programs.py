"""Where programs are found: in a PATH, and in the directories of version managers and installers."""

from __future__ import annotations

import glob
import os
import shutil

_PROGRAM_DIRECTORIES = (
    "~/.local/bin",
    "~/.nvm/versions/node/*/bin",
    "~/.local/share/fnm/node-versions/*/installation/bin",
    "~/.volta/bin",
    "~/.asdf/shims",
    "~/.local/share/mise/shims",
    "~/.pyenv/shims",
    "~/.cargo/bin",
    "~/.bun/bin",
    "~/.deno/bin",
    "~/.local/share/pnpm",
    "~/go/bin",
    "~/.nix-profile/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/opt/homebrew/bin",
    "/usr/local/bin",
    "/snap/bin",
)


def find_program(command: str, path: str) -> str | None:
    """Return what a shell with that PATH would run."""
    return shutil.which(os.path.expanduser(command), path=path)


def find_elsewhere(command: str) -> list[str]:
    """Find a program in the directories of version managers and installers, regardless of PATH."""
    if "/" in command:
        return []
    found = []
    for place in _PROGRAM_DIRECTORIES:
        for directory in sorted(glob.glob(os.path.expanduser(place))):
            candidate = os.path.join(directory, command)
            if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
                found.append(candidate)
    return found

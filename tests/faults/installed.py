"""mcpd installed as by a package manager, in a directory of its own, to be replaced while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import attrs
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OURS = ("mcpd", "ctl")
ISOLATED = {"PYTHONPATH": ""}
"""What is installed is all there is: nothing of the working tree."""
SCRIPT = """#!{python}
import sys
from {module} import main
sys.exit(main())
"""


@attrs.frozen
class Installation:
    """A virtual environment with copies of our packages and their dependencies, and nothing else."""

    python: str
    packages: Path

    def program(self, name: str) -> str:
        return str(Path(self.python).with_name(name))

    def upgrade(self) -> int:
        """Replace each of our modules and files with an unusable one, and return how many were replaced."""
        files = [
            path
            for path in self.packages.rglob("*")
            if path.suffix in (".py", ".pyc", ".so") or (path.is_file() and self._is_ours(path))
        ]
        for path in files:
            path.unlink()
            if path.suffix == ".py":
                path.write_text(f"raise ImportError('{path.name} is of another version')\n")
            elif path.suffix not in (".pyc", ".so"):
                path.write_text("of another version")
        return len(files)

    def _is_ours(self, path: Path) -> bool:
        return path.relative_to(self.packages).parts[0] in OURS

    def install_again(self) -> None:
        """Install the same version again; files keep their packed timestamps, as with some installers."""
        shutil.rmtree(self.packages)
        _fill(self.packages)
        self.compile()

    def compile(self) -> None:
        """Compile as an installer does. Otherwise the first start takes seconds and an editor times out."""
        modules = (
            "mcpd.main, mcpd.daemon, ctl.main, ctl.daemon.process, ctl.bridge.loop, ctl.bridge.daemon_starter"
        )
        environ = {**os.environ, **ISOLATED, "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run([self.python, "-c", f"import {modules}"], env=environ, cwd="/", check=True)


def install(place: Path) -> Installation:
    """Install into `place`."""
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    _fill(packages)
    python = str(place / "bin" / "python")
    for name, module in (("mcpd", "mcpd.main"), ("mcpctl", "ctl.main")):
        script = place / "bin" / name
        script.write_text(SCRIPT.format(python=python, module=module))
        script.chmod(0o755)
    made = Installation(python, packages)
    made.compile()
    return made


def _fill(packages: Path) -> None:
    for name in OURS:
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    for distribution in _needed():
        for file in distribution.files or ():
            source, target = Path(str(distribution.locate_file(file))), packages / file
            if ".." not in file.parts and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def _needed() -> Iterator[metadata.Distribution]:
    """Return the dependencies of our package, including indirect ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen: set[str] = set()
    ahead = [Requirement(each) for each in project["dependencies"]]
    while ahead:
        wanted = ahead.pop()
        if wanted.name in seen or not (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name)
        distribution = metadata.distribution(wanted.name)
        yield distribution
        ahead += [Requirement(each) for each in distribution.requires or ()]

"""Modules that are imported later come from memory, not from files that an upgrade may have replaced."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from mcpd.process.kept_modules import KeptModules

FILES = {
    "kept/__init__.py": "from kept.inner import NAME\n",
    "kept/inner/__init__.py": "NAME = __name__\n",
    "kept/inner/late.py": "import os\nDIRECTORY = os.path.dirname(__file__)\n",
    "kept/broken.py": "raise ValueError('not now')\n",
    "single.py": "VALUE = 42\n",
}

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import mcpd.main, mcpd.daemon, trio
from importlib.machinery import PathFinder
import mcpd.api, mcpd.transports
from mcpd.process.kept_modules import KeptModules
KeptModules().keep(mcpd.daemon._IMPORTED_LATER)
ours = [mcpd.__path__[0], *(path for path in sys.path if path.endswith("site-packages"))]
names = [module.name for package in (mcpd.api, mcpd.transports)
         for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
class Upgraded:
    find_distributions = staticmethod(PathFinder.find_distributions)
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and spec.origin.startswith(tuple(ours)):
            raise ImportError(f"{name} would be imported from {spec.origin}")
        return spec
sys.meta_path[sys.meta_path.index(PathFinder)] = Upgraded()
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with packages, on the import path."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("kept", "single")]:
        del sys.modules[name]


@pytest.fixture
def modules() -> Iterator[KeptModules]:
    made = KeptModules()
    yield made
    made.remove()


def replace(packages: Path) -> None:
    for name in FILES:
        (packages / name).write_text("raise ImportError('of another version')\n")
    for cache in packages.rglob("*.pyc"):
        cache.unlink()


def test_kept_modules_are_imported_after_their_files_were_replaced(
    packages: Path, modules: KeptModules
) -> None:
    """Packages, the modules in them, and `__file__` are as usual."""
    modules.keep(["kept", "single"])
    assert not {"kept", "single"} & sys.modules.keys()
    replace(packages)
    import kept.inner.late  # type: ignore[import-not-found]
    import single  # type: ignore[import-not-found]

    assert (single.VALUE, kept.NAME) == (42, "kept.inner")
    assert Path(kept.inner.late.DIRECTORY) == packages / "kept" / "inner"


def test_failed_import_can_be_repeated(packages: Path, modules: KeptModules) -> None:
    """The second attempt runs the same code."""
    modules.keep(["kept"])
    replace(packages)
    for _ in range(2):
        with pytest.raises(ValueError, match="not now"):
            import kept.broken  # type: ignore[import-not-found]  # noqa: F401


def test_module_that_cannot_be_read_is_left_out(
    packages: Path, modules: KeptModules, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For want of descriptors, for example. That must not end the daemon."""

    def fail(self: SourceFileLoader, path: str) -> bytes:
        raise OSError(24, "Too many open files", path)

    monkeypatch.setattr(SourceFileLoader, "get_data", fail)
    modules.keep(["kept", "single"])
    monkeypatch.undo()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "cannot keep the code of kept",
        "cannot keep the code of single",
    ]
    monkeypatch.syspath_prepend(packages)
    assert importlib.import_module("single").VALUE == 42
    caplog.clear()


def test_the_daemon_keeps_all_modules_that_it_imports_later() -> None:
    """Every module of the transports and of the API can be imported without reading a file of ours."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 40

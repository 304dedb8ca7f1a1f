"""A deferred module is loaded with the first use of one of its attributes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from mcpd.support.deferred_modules import DeferredModule, defer_modules
from mcpd.support.kept_modules import KeptModules

NAMES = ("rarely", "rarely_package", "rarely_package.inner", "user_of_rarely")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on the import path, with modules that are deferred."""
    (tmp_path / "rarely_package").mkdir()
    (tmp_path / "rarely_package" / "__init__.py").write_text("")
    (tmp_path / "rarely_package" / "inner.py").write_text("VALUE = 1\n")
    (tmp_path / "rarely.py").write_text("FIRST = object()\nLAST = FIRST\n")
    (tmp_path / "user_of_rarely.py").write_text("import rarely\ndef use():\n    return rarely.LAST\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


def is_loaded(name: str) -> bool:
    return not isinstance(sys.modules[name], DeferredModule)


def test_module_is_loaded_with_its_first_use() -> None:
    """Modules that have imported it before and those that import it afterwards share its objects."""
    defer_modules(["rarely"])
    user = importlib.import_module("user_of_rarely")
    assert not hasattr(sys.modules["rarely"], "__file__")
    assert not is_loaded("rarely")
    assert user.use() is importlib.import_module("rarely").FIRST
    assert is_loaded("rarely")


def test_loaded_module_is_not_deferred() -> None:
    loaded = importlib.import_module("rarely")
    defer_modules(["rarely"])
    assert importlib.import_module("rarely") is loaded


def test_module_of_a_deferred_package_can_be_imported() -> None:
    defer_modules(["rarely_package"])
    assert importlib.import_module("rarely_package.inner").VALUE == 1


def test_missing_attribute_is_an_error() -> None:
    defer_modules(["rarely"])
    module = importlib.import_module("rarely")
    with pytest.raises(AttributeError, match="has no attribute 'SECOND'"):
        _ = module.SECOND


def test_threads_that_use_it_at_the_same_time_see_the_complete_module(files: Path) -> None:
    (files / "rarely.py").write_text("import time\nFIRST = 1\ntime.sleep(0.05)\nLAST = 2\n")
    defer_modules(["rarely"])
    user = importlib.import_module("user_of_rarely")
    ready = Barrier(4)

    def use(_: int) -> object:
        ready.wait()
        return user.use()

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(use, range(4))] == [2] * 4


def test_kept_code_of_a_deferred_module_is_used(files: Path) -> None:
    """An upgrade may have replaced the file by then."""
    defer_modules(["rarely"])
    kept = KeptModules()
    kept.keep(["rarely"])
    try:
        (files / "rarely.py").write_text("raise ImportError('of another version')\n")
        user = importlib.import_module("user_of_rarely")
        assert user.use() is sys.modules["rarely"].FIRST
    finally:
        kept.remove()

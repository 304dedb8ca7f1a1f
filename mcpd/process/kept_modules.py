"""Imports modules when they are first needed, although an upgrade may have replaced their files by then.

A running daemon must not mix code of two versions. So it imports at its start what every daemon needs, and
reads the bytecode of everything else, which it keeps compressed until it is imported. Most daemons never need
the modules for HTTP: as kept code they take a tenth of their memory, and no time before the first call.
"""

from __future__ import annotations

import importlib
import logging
import marshal
import sys
import zlib
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

log = logging.getLogger("mcpd")


class KeptModules:
    """A finder and loader of the import system, which precedes those for files (`sys.meta_path`)."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, str, list[str] | None]] = {}
        """By name: the compressed code, the path of the file, and for a package the paths of its modules."""

    def keep(self, names: Iterable[str]) -> None:
        """Keep these modules, and all modules of those that are packages, unless they are imported already.

        The package that contains them must be imported. Extension modules cannot be kept and are imported.
        A module that is not installed or cannot be read is skipped. Blocks for about 0.1 s, so call it in a
        thread.
        """
        for name in names:
            parent = name.rpartition(".")[0]
            try:
                self._keep(name, sys.modules[parent].__path__ if parent else None)
            except Exception as error:  # it cannot be read now, for want of descriptors for example
                log.warning("cannot keep the code of %s: %s; it is read when needed", name, error)
        for name in self._kept.keys() & sys.modules.keys():
            del self._kept[name]  # it was imported in the meantime
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop taking part in imports. The code is dropped."""
        sys.meta_path.remove(self)
        self._kept.clear()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in self._kept:
            return None
        _, origin, paths = self._kept[name]
        spec = ModuleSpec(name, self, origin=origin)  # type: ignore[arg-type]  # it has a loader's methods
        spec.has_location = True
        spec.submodule_search_locations = paths
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `importlib.abc.Loader`."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`. The code is dropped after that, unless it raised an exception."""
        name = module.__name__
        code: CodeType = marshal.loads(zlib.decompress(self._kept[name][0]))  # noqa: S302 - our own bytes
        exec(code, module.__dict__)  # noqa: S102 - as every loader does
        del self._kept[name]

    def _keep(self, name: str, path: Sequence[str] | None) -> None:
        import pkgutil  # imported here because it is needed only once, after the start

        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return
        paths = spec.submodule_search_locations
        if isinstance(spec.loader, SourceFileLoader):
            if name not in sys.modules:
                code = zlib.compress(marshal.dumps(spec.loader.get_code(name)), 1)
                self._kept[name] = (code, spec.origin or "", None if paths is None else list(paths))
        elif spec.loader is not None:
            importlib.import_module(name)
        for module in pkgutil.iter_modules(paths or ()):
            self._keep(f"{name}.{module.name}", paths)

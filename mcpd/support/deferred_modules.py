"""Loads modules on first use, even if libraries import them at the top of their own modules.

trio imports the modules for TLS in every program. A daemon without remote servers never uses them, and
OpenSSL alone takes 4 MB.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType


class DeferredModule(ModuleType):
    """Stands for a module in `sys.modules` until somebody reads one of its attributes."""

    def __getattr__(self, name: str) -> object:
        """Load the module, and return its attribute. Names such as `__file__` do not load it.

        Threads may call this at the same time: the import system lets one of them load the module, and each
        of them copies the complete module.
        """
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module {self.__name__!r} is not loaded yet and has no attribute {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))  # for the modules that have imported this object
        return getattr(module, name)


def defer_modules(names: Iterable[str]) -> None:
    """Load these modules on first use, unless they are already loaded.

    Suits modules that are imported as a whole (`import ssl`), because `from ssl import SSLContext` is a use.
    """
    for name in names:
        sys.modules.setdefault(name, DeferredModule(name))

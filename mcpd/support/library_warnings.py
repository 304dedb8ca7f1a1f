"""Replaces what Python prints for a library's warning: its text may quote a file that contains secrets."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def hide_texts(report: Callable[[str], None] | None = None) -> None:
    """From now on, pass only the kind and the place of a warning to `report`, instead of printing it.

    Without `report`, warnings are ignored. Call this at the start of a process.
    """

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        if report is not None:
            place = os.path.join(os.path.basename(os.path.dirname(filename)), os.path.basename(filename))
            report(f"a library warned: {category.__name__} in {place}:{lineno}")

    warnings.showwarning = show

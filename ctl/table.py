"""Tables as lines of text: columns as wide as their content, truncated to fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.output import Line, Painted, paint
from ctl.terminal_text import clean, cut, width

_PREFERRED_WIDTH, _MIN_WIDTH = 24, 12
"""Widths that the last column, and a squeezed one, keep if possible."""


def table(
    header: Sequence[str],
    rows: Sequence[Line],
    *,
    right: Sequence[int] = (),
    fit: int | None = None,
    squeeze: Sequence[int] = (),
    drop: Sequence[int] = (),
    whole: int | None = None,
    preferred: int = _PREFERRED_WIDTH,
) -> list[Line]:
    """Lay out columns as wide as their widest cell, two spaces apart. `right` lists the right-aligned ones.

    With `fit`, the last column is truncated so that no line is longer. Before it has fewer than `preferred`
    characters, the columns in `drop` are omitted and those in `squeeze` truncated, in that order. Cells of
    the column `whole` can be copied: they are never truncated. Without `fit`, nothing is truncated.
    """
    cells = [[_clean_cell(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in (header, *cells)) for i in range(len(header))]
    last = len(header) - 1
    if fit is not None:
        wanted = max(len(header[last]), min(widths[last], preferred))
        if drop and sum(widths[:last]) + wanted + 2 * last > fit:
            kept = [i for i in range(last + 1) if i != drop[0]]
            return table(
                [header[i] for i in kept],
                [[row[i] for i in kept] for row in rows],
                right=_remap(right, kept),
                fit=fit,
                squeeze=_remap(squeeze, kept),
                drop=_remap(drop, kept),
                preferred=preferred,
                whole=None if whole is None else next(iter(_remap([whole], kept)), None),
            )
        if whole is not None:
            others = sum(widths[:last]) - widths[whole] + wanted + 2 * last
            widths[whole] = min(widths[whole], max(len(header[whole]), _MIN_WIDTH, fit - others))
        for i in squeeze:
            lack = sum(widths[:last]) + wanted + 2 * last - fit
            widths[i] = min(widths[i], max(len(header[i]), _MIN_WIDTH, widths[i] - lack))
        widths[last] = max(len(header[last]), min(widths[last], fit - sum(widths[:last]) - 2 * last))
    lines: list[Line] = []
    heading: list[str] = [paint(name, "bold") for name in header]
    for row in (heading, *cells):
        parts: list[str] = []
        taken = 0
        for i, cell in enumerate(row):
            room = widths[i] if fit is None or i < last else min(widths[i], fit - taken)
            cuttable = fit is not None and (i == last or i in squeeze)
            shown = _styled_like(cell, cut(cell, room)) if cuttable else cell
            taken += max(widths[i], width(shown)) + 2
            pad = " " * (widths[i] - width(shown))
            gap = "  " if i < last else ""
            parts += [pad, shown, gap] if i in right else [shown, pad if i < last else "", gap]
        lines.append([part for part in parts if part])
    return lines


def _remap(columns: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Return the indexes of `columns` among those that are kept."""
    return [kept.index(i) for i in columns if i in kept]


def _clean_cell(cell: str) -> str:
    return _styled_like(cell, clean(cell))


def _styled_like(model: str, text: str) -> str:
    return paint(text, model.style) if isinstance(model, Painted) else text


def labelled_lines(rows: Sequence[tuple[str, str | Sequence[str]]]) -> list[Line]:
    """Lay out one row per line, with the labels right-aligned before a colon, as systemctl shows a unit."""
    return [
        [paint(f"{label:>12}: ", "dim"), *([value] if isinstance(value, str) else value)]
        for label, value in rows
    ]

"""Tables on terminals of every width: omitted and truncated columns."""

from __future__ import annotations

import pytest

from ctl.cli.output import Line, table
from ctl.show.watch import fit_rows

HEADER = ("NAME", "STATE", "CALLS", "SAYS")
ROWS: list[Line] = [["one", "well", "10", "a rather long sentence of a server"], ["twelve", "ill", "7", "-"]]


def drawn(fit: int | None, **options: object) -> list[str]:
    return ["".join(line) for line in table(HEADER, ROWS, right=(2,), fit=fit, **options)]  # type: ignore[arg-type]


def test_columns_are_dropped_in_order() -> None:
    """One by one as the terminal gets narrower. Alignment is kept."""
    assert drawn(80, drop=(2, 1))[2] == "twelve  ill        7  -"
    assert drawn(40, drop=(2, 1)) == [
        "NAME    STATE  SAYS",
        "one     well   a rather long sentence o…",
        "twelve  ill    -",
    ]
    assert drawn(30, drop=(1, 2))[1] == "one     a rather long sentenc…"
    assert drawn(None, drop=(2, 1)) == drawn(80)


@pytest.mark.parametrize("fit", range(12, 120))
def test_no_line_is_longer_than_the_terminal(fit: int) -> None:
    """Unless the first column alone is wider."""
    assert max(map(len, drawn(fit, drop=(2, 1)))) <= fit


def test_fit_rows_shows_the_number_of_omitted_lines() -> None:
    lines: list[Line] = [[str(number)] for number in range(10)]
    assert fit_rows(lines, 11) == lines
    assert ["".join(line) for line in fit_rows(lines, 6)] == ["0", "1", "2", "3", "… 6 more lines"]

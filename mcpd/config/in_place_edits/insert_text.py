"""Inserts text into files whose comments begin with `#`: TOML and YAML."""

from __future__ import annotations

import re

_REST_OF_LINE = re.compile(r"(,?)([ \t]*(?:#[^\r\n]*)?)(?=\r?\n)")


def append_block(text: str, block: str) -> str:
    """Append `block` after a blank line. A file without a final line break stays without one."""
    eol = "\r\n" if "\r\n" in text else "\n"
    block = block.strip("\n").replace("\n", eol)
    if not text:
        return block + eol
    return f"{text}{eol}{block}{eol}" if text.endswith("\n") else f"{text}{eol}{eol}{block}"


def has_content(line: str) -> bool:
    """Return whether the line contains anything but a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def insert_into_brackets(text: str, at: int, item: str, comment: str) -> str:
    """Insert an element before the one that starts at `at`, in a list in brackets, on a line of its own.

    Where the others share a line, it is broken. Comments begin with `#`.
    """
    eol = "\r\n" if "\r\n" in text else "\n"
    line = text.rfind("\n", 0, at) + 1
    before = text[line:at]
    if before.strip():
        indent = before[: len(before) - len(before.lstrip())] + "  "
        comment_line = f"{eol}{indent}# {comment}" if comment else ""
        return f"{text[:at]}{comment_line}{eol}{indent}{item},{eol}{indent}{text[at:]}"
    while line and (above := text.rfind("\n", 0, line - 1) + 1) < line:
        if not text[above:line].lstrip().startswith("#"):
            break
        line = above
    comment_line = f"{before}# {comment}{eol}" if comment else ""
    return f"{text[:line]}{comment_line}{before}{item},{eol}{text[line:]}"


def append_in_brackets(text: str, start: int, end: int, item: str) -> str:
    """Append an element after the last one, `text[start:end]`, of a list in brackets.

    If the last one begins a line, so does the new one. Comments begin with `#`.
    """
    eol = "\r\n" if "\r\n" in text else "\n"
    indent = text[text.rfind("\n", 0, start) + 1 : start]
    if indent.strip():
        return f"{text[:end]}, {item}{text[end:]}"
    rest = _REST_OF_LINE.match(text, end)
    comma, comment = (rest[1], rest[2]) if rest is not None else ("", "")
    after = end if rest is None else rest.end()
    return f"{text[:end]},{comment}{eol}{indent}{item}{comma}{text[after:]}"

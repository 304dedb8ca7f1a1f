"""Inserts text into files whose comments begin with `#`: TOML and YAML."""

from __future__ import annotations


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

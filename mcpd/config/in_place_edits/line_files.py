"""Files of whole lines: what an edit of TOML and one of YAML have in common."""

from __future__ import annotations


def append_block(text: str, block: str) -> str:
    """`block` at the end, one blank line apart; a file without a last line break stays without one."""
    eol = "\r\n" if "\r\n" in text else "\n"
    block = block.strip("\n").replace("\n", eol)
    if not text:
        return block + eol
    return f"{text}{eol}{block}{eol}" if text.endswith("\n") else f"{text}{eol}{eol}{block}"


def has_content(line: str) -> bool:
    """Whether something stands on the line that is no remark."""
    return bool(line.strip()) and not line.lstrip().startswith("#")

"""The JSON Schema and the reference page know every field that the parser knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest

from mcpd.config.definition import Definition, json_schema
from mcpd.config.jsonc import parse_jsonc
from mcpd.config.loader import load
from mcpd.config.settings import WrittenRestart, WrittenSettings, WrittenTimeouts
from mcpd.config.structuring import spellings, written_fields
from mcpd.model.errors import BadSpec

WRITTEN = (Definition, WrittenSettings, WrittenTimeouts, WrittenRestart)
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples/config").iterdir() if path.suffix in (".json", ".jsonc"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_schema_agrees_with_the_examples(path: Path) -> None:
    """It accepts the valid examples and refuses the broken one."""
    validator = jsonschema_rs.validator_for(json.dumps(json_schema()))
    assert validator.is_valid(json.loads(json.dumps(parse_jsonc(path.read_text())))) is (
        path.stem != "broken"
    )


def test_the_reference_page_has_a_row_for_every_field() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    names = [name for kind in WRITTEN for name in written_fields(kind)]
    listed = ", ".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)).split(", ")
    assert [name for name in names if f"`{name}`" not in listed] == []
    assert [name for name in spellings(Definition) if f"`{name}`" not in page] == []


def test_problems_on_the_reference_page_match_the_parser() -> None:
    """The page quotes the messages of the parser."""
    with pytest.raises(BadSpec) as caught:
        load(ROOT / "examples/config/broken.json", {})
    received = "".join(f"  {p.path}: {p.message} ({p.fix})\n" for p in caught.value.problems)
    assert received in (ROOT / "docs/reference/configuration.md").read_text()


@pytest.mark.parametrize(
    ("document", "is_valid"),
    [
        ({"mcpServers": {"a": {"command": "x"}}, "editorSetting": 1}, True),
        ({"mcpServers": {"a": {"command": "x", "name": "a", "alwaysAllow": 5, "_note": 1, "$x": []}}}, True),
        ({"mcpServers": {"a": {"command": "x", "unknown": 1}}}, False),
        ({"mcp": {"servers": [{"name": "a", "command": "x"}]}}, True),
        ({"mcp": {"servers": [{"command": "x"}]}}, False),
        ({"mcp": {"unknown": 1}}, False),
        ({"mcp": {}, "mcpServers": {}}, False),
        ({"settings": {"unknown": 1}}, False),
        ({"settings": {"profiles": {"a": {"servers": ["x"]}}}}, True),
        ({"settings": {"profiles": {"a": {"unknown": 1}}}}, False),
    ],
)
def test_schema_accepts_only_known_members(document: object, is_valid: bool) -> None:
    validator = jsonschema_rs.validator_for(json.dumps(json_schema()))
    assert validator.is_valid(document) is is_valid

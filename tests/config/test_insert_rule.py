"""A rule is inserted, and the rest of the file stays byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpd.config.edit_config_file import insert_rule
from mcpd.config.in_place_edits.document import parse_document, read_document
from mcpd.config.loader import load
from mcpd.model.errors import BadSpec

RULE: Any = {"decision": "allow", "clients": ["zed"], "tools": ["a"], "reason": "Allowed by ada"}
JSONC = """{
\t// servers
\t"mcpServers": {"git": {"command":   "x"}},  /* odd  spacing */
\t"settings": {
\t\t"policies": [
\t\t\t{"decision": "deny", "tools": ["x"]},   // never
\t\t\t// ask about the rest
\t\t\t{
\t\t\t\t"decision": "ask",
\t\t\t},
\t\t],
\t},
}"""
YAML = """# servers
mcpServers:
  git: {command: x}
settings:
  policies:
    - decision: deny   # never
      tools: [x]
    # ask about the rest
    - decision: ask
"""
TOML = """# servers
[mcpServers.git]
command = "x"

[[settings.policies]]
decision = "deny"  # never
tools = ["x"]

# ask about the rest
[[settings.policies]]
decision = "ask"
"""
FLOW = (
    "mcpServers: {git: {command: x}}\nsettings: {policies: [{decision: deny, tools: [x]}, {decision: ask}]}\n"
)
INLINE = """settings.policies = [{decision = "deny", tools = ["x"]}, {decision = "ask"}]  # mine

[mcpServers.git]
command = "x"
"""
EXPECTED: list[Any] = [{"decision": "deny", "tools": ["x"]}, {"decision": "ask"}]
SERVERS: Any = {"git": {"command": "x"}}
ONE_LINE = json.dumps({"mcpServers": SERVERS, "settings": {"policies": EXPECTED}})
WRAPPED = json.dumps({"mcp": {"servers": SERVERS, "globalSettings": {"policies": EXPECTED}}})
FILES = [
    ("a.json", JSONC),
    ("b.json", ONE_LINE),
    ("c.json", WRAPPED),
    ("d.yaml", YAML),
    ("e.toml", TOML),
]


@pytest.mark.parametrize("eol", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize(
    ("name", "text"),
    FILES,
)
def test_rule_is_inserted_and_the_rest_stays(
    tmp_path: Path, name: str, text: str, before: int, eol: str
) -> None:
    file = tmp_path / name
    old = text.replace("\n", eol).encode()
    file.write_bytes(old)
    insert_rule(file, before, RULE, EXPECTED)
    new = file.read_bytes()
    added = len(new) - len(old)
    places = [at for at in range(len(old) + 1) if new[:at] + new[at + added :] == old]
    assert places, "one place was changed, and nothing else"
    rules = load(file, {}).settings.policies
    decisions = ["deny", "ask"]
    decisions.insert(before, "allow")
    assert [rule.decision.value for rule in rules] == decisions
    assert rules[before].clients == ("zed",)
    if before and "ask about the rest" in text:
        lines = new.decode().splitlines()
        at = next(n for n, line in enumerate(lines) if "ask about the rest" in line)
        assert any("Allowed by ada" in line for line in lines[:at]), "the comment stays with its rule"


def test_rules_that_are_not_the_expected_ones_are_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(JSONC)
    with pytest.raises(BadSpec, match="have changed"):
        insert_rule(file, 1, RULE, EXPECTED[:1])
    assert file.read_text() == JSONC


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{}"),
        ("b.json", '{"settings": {"policies": []}} // end'),
        ("c.yaml", "# mine\nsettings:\n  debug: true  # yes\n"),
        ("d.toml", "# mine\n[settings]\ndebug = true  # yes\n"),
        ("e.yaml", ""),
    ],
)
def test_first_rule_creates_the_list(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    changed = read_document(file).with_item(("settings", "policies"), 0, RULE)
    assert parse_document(changed.data, file).value_at(("settings", "policies")) == [RULE]
    for comment in ("// end", "# mine", "# yes"):
        assert (comment in changed.text) == (comment in text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.yaml",
            "x: &rules [{decision: deny, tools: [x]}, {decision: ask}]\nsettings: {policies: *rules}\n",
        ),
        ("b.json", '{"settings": {"policies": {"decision": "ask"}}}'),
        ("c.yaml", FLOW),
        ("d.toml", INLINE),
    ],
)
def test_list_that_cannot_be_edited_in_place_is_left_alone(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    expected = read_document(file).value_at(("settings", "policies"))
    with pytest.raises(BadSpec, match="without risking other content") as caught:
        insert_rule(file, 1, RULE, expected)
    (problem,) = caught.value.problems
    assert problem.fix.endswith(f"before the rule at $.settings.policies[1]: {json.dumps(RULE)}")
    assert file.read_text() == text

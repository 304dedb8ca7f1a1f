"""The files of editors in each documented format, as definitions of mcpd."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ctl.editors.config_files import EDITORS, UserContext, find_editor_files
from ctl.editors.read_entries import ImportCandidate, discover
from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from tests.ctl.editors.golden import CASES, expected, settle


def written(one: ImportCandidate) -> dict[str, object]:
    """Return the definition, with the directory that the editor implies."""
    cwd = {} if one.implied_cwd is None else {"cwd": one.implied_cwd}
    return {**one.definition, **cwd}


@pytest.mark.parametrize("case", CASES)
def test_every_format_is_read_as_documented(case: str, tmp_path: Path) -> None:
    """Fields, units, variables and skipped entries; every result is a valid definition."""
    settle(case, tmp_path)
    wanted = expected(case, tmp_path)
    around = UserContext(
        {"HOME": str(tmp_path)}, tmp_path / wanted.get("project", "empty"), mac=False, root=tmp_path
    )

    seen = discover(find_editor_files(EDITORS, around), [], around, frozenset())

    found = [[one.source.scope, one.name, written(one)] for one in seen.candidates]
    assert found == wanted["servers"]
    assert {one.source.name: one.reason for one in seen.skipped} == wanted.get("passed", {})
    assert seen.warnings == wanted.get("warnings", [])
    needed = {one.name: [n.name, n.prompt] for one in seen.candidates for n in one.needed_secrets}
    assert needed == wanted.get("needed", {})
    for name, part in wanted.get("notes", {}).items():
        assert part in " | ".join(next(one for one in seen.candidates if one.name == name).notes)
    for one in [one for one in seen.candidates if not one.needed_secrets]:
        variables = re.findall(r"\$\{(\w+)\}", json.dumps(one.definition))
        environ = dict.fromkeys(variables, "value")
        parse_servers(
            {one.name: written(one)}, environ=environ, settings=Settings(), base_dir=tmp_path, path="$"
        )


def test_entries_that_are_no_objects_are_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    entries = {"line": "npx -y server", "url": "https://x.example/mcp", "null": None, "list": ["x"]}
    path.write_text(json.dumps({"mcpServers": entries}))
    around = UserContext({"HOME": str(tmp_path)}, tmp_path, mac=False, root=tmp_path)
    seen = discover(find_editor_files(EDITORS, around), [], around, frozenset())
    assert {one.name: one.definition for one in seen.candidates} == {
        "line": {"command": "npx", "args": ["-y", "server"]},
        "url": {"url": "https://x.example/mcp"},
    }
    assert {one.source.name for one in seen.skipped} == {"null", "list"}

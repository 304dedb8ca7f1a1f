"""The generated types of the control API, and their use."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.test_docs import maker

CTL = Path(__file__).parent.parent.parent / "ctl"
TYPES = CTL / "api_types.pyi"

OTHER_MEMBERS = {
    # JSON Schema
    *("anyOf", "enum", "oneOf"),
    # MCP: tools, resources, prompts and their results
    *("annotations", "arguments", "blob", "content", "contents", "description", "inputSchema", "isError"),
    *(
        "messages",
        "mimeType",
        "name",
        "properties",
        "qualified_name",
        "required",
        "resource",
        "role",
        "server",
        "text",
        "title",
    ),
    *("type", "uri", "uriTemplate", "progress", "total", "message"),
    # JSON-RPC messages and errors
    *(
        "id",
        "params",
        "result",
        "error",
        "data",
        "code",
        "problems",
        "path",
        "fix",
        "after",
        "_meta",
        "may_have_run",
    ),
    # click parameters
    "words",
    # systemd
    "ExecMainStatus",
    # server definitions
    *("command", "args", "env", "httpUrl", "url", "enabled", "disabled", "cwd", "headers", "oauth"),
    "concurrency",
    *("readOnlyHint", "destructiveHint"),  # of a tool, as its server declares them
    # systemd properties and environment variables
    *("LoadState", "LoadError", "MainPID", "StandardError", "StandardOutput"),
    *("ActiveState", "SubState", "StatusText", "NRestarts", "Result", "UnitFileState", "NeedDaemonReload"),
}


def test_generated_types_are_up_to_date() -> None:
    """If this fails, run `make docs`."""
    assert TYPES.read_text() == maker("make_api_types").module()


def test_get_is_only_called_with_known_members() -> None:
    """mypy reports a misspelled `answer["member"]`, but not `answer.get("member")`."""
    known = OTHER_MEMBERS.copy()
    for kind in ast.parse(TYPES.read_text()).body:
        if isinstance(kind, ast.ClassDef):
            known |= {each.target.id for each in kind.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
    files = [*CTL.glob("*.py"), *(CTL / "commands").glob("*.py")]
    assert [
        f"{file.name}:{node.lineno}: {name}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        for key in node.args[:1]
        if isinstance(key, ast.Constant) and isinstance(name := key.value, str)
        if name.isidentifier() and not name.isupper() and name not in known
    ] == []

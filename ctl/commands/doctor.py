"""`mcpctl doctor`: is everything as it has to be, and what mends it."""

from __future__ import annotations

import os

import click

from ctl.context import CliContext
from ctl.doctor_checks import Finding
from ctl.output import Line, paint
from ctl.terminal_text import count

_MARKS = {
    "ok": ("ok", "green"),
    "warning": ("warn", "yellow"),
    "failure": ("FAIL", "red"),
    "skipped": ("-", "dim"),
}


@click.command(epilog="Examples:\n\n\b\n  mcpctl doctor\n  mcpctl doctor --bundle mcpd-report.tar.gz")
@click.option("--shell/--no-shell", default=True, help="Compare with a login shell.", show_default=True)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a report for others to read: a .tar.gz without secrets.",
)
@click.pass_obj
def doctor(cli: CliContext, shell: bool, bundle: str | None) -> int:
    """Look whether everything is as it has to be.

    The socket, the service, the PATH against your login shell's, the programs that servers need, the
    configuration, and each server with a real round trip. Works without a daemon, and starts none. Each
    thing that is not well comes with a line that mends it; exit 1 when any check fails.
    """
    from ctl.doctor import run_checks

    seen = run_checks(cli, os.environ, shell=shell)
    failed = [finding for finding in seen.findings if finding.result == "failure"]
    if bundle is not None:
        from ctl.support_bundle import write_bundle

        write_bundle(bundle, seen, os.environ)
    if cli.out.json:
        found = [finding.to_json() for finding in seen.findings]
        cli.out.json_value({"well": not failed, "findings": found, "bundle": bundle})
    else:
        cli.out.lines(_report(seen.findings))
        if bundle is not None:
            cli.out.message(f"wrote {bundle}: look through it before you send it to anybody")
    return 1 if failed else 0


def _report(findings: list[Finding]) -> list[Line]:
    lines: list[Line] = []
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        word, style = _MARKS[finding.result]
        took = "" if finding.ms is None else f" ({finding.ms:{'.0f' if finding.ms >= 100 else '.3g'}} ms)"
        lines.append([paint(f"{word:>4}", style), f"  {finding.check:<{width}}  {finding.message}{took}"])
        if finding.fix:
            lines.append([" " * (width + 8), paint("→ ", "dim"), finding.fix])
    bad = sum(finding.result == "failure" for finding in findings)
    doubtful = sum(finding.result == "warning" for finding in findings)
    summary = f"{count(bad, 'failure')}, {count(doubtful, 'warning')}" if bad or doubtful else "all is well"
    return [*lines, [], [summary]]

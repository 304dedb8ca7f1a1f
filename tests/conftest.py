"""For all tests: what skips mean, patience with busy machines, and ^C as a terminal has it.

Skips are for machines that lack something; where nothing may be lacking, they are failures.
"""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy with other work is slow at everything: that says nothing of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts what it puts in the background with ^C ignored, and so would every child of ours be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--strict-skips`, which .ci/run gives: what was to be installed there must have been used."""
    parser.addoption("--strict-skips", action="store_true", help="a skipped test is a failed one")
    parser.addoption(
        "--allow-skip",
        action="append",
        default=[],
        metavar="TEXT",
        help="with --strict-skips: except where the reason contains TEXT (may be given several times)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report, collector.config)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    if not report.skipped or not config.getoption("--strict-skips"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(text in reason for text in config.getoption("--allow-skip")):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --strict-skips was given: {reason.removeprefix('Skipped: ')}"

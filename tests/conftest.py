"""Configuration of all tests: marks, parallel runs, strict skips, Hypothesis profiles and Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.e2e import harness

TESTS = Path(__file__).parent
E2E_DIRECTORIES = {"conformance", "dashboard", "e2e", "faults", "interop", "soak", "systemd"}
MAX_WORKERS = 16

# No deadlines: a busy machine is slow at everything, which says nothing about the tested code.
# The same examples in each run: a change must not fail for an old fault. `thorough` looks for new ones.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.register_profile("fast", settings.get_profile("patient"), max_examples=15)
settings.register_profile("thorough", settings.get_profile("patient"), max_examples=1000, derandomize=False)
settings.load_profile("patient")  # `--hypothesis-profile=fast` replaces it later

# A shell starts background jobs with SIGINT ignored, and every child of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the files in tests/ctl/golden anew")
    parser.addoption("--strict-skips", action="store_true", help="treat a skipped test as failed")
    parser.addoption(
        "--allow-skip",
        action="append",
        default=[],
        metavar="TEXT",
        help="with --strict-skips: allow skips whose reason contains TEXT (may be repeated)",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes `-n auto` starts: two per processor, because most tests wait for others."""
    return min(2 * len(os.sched_getaffinity(0)), MAX_WORKERS)


def pytest_collection_finish() -> None:
    """Exclude pytest's own objects from garbage collection, as the daemon does with its imported ones.

    The end of a connection collects garbage, which took 0.1 s here, and some tests end 300 connections.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    grouping = config.pluginmanager.hasplugin("xdist")
    for item in items:
        assert isinstance(item, pytest.Function)
        if is_e2e(item):
            item.add_marker(pytest.mark.e2e)
        uses_browser = "chromium" in item.fixturenames
        if uses_browser:
            item.add_marker(pytest.mark.browser)
        if (
            grouping and "mcpc" in item.name
        ):  # they start slowly and have time limits of their own, so they run one after the other
            item.add_marker(pytest.mark.xdist_group("mcpc"))
        elif grouping and (uses_browser or shares_a_fixture(item)):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def is_e2e(item: pytest.Function) -> bool:
    """Whether the test is in a directory of end-to-end tests, or it or its module starts daemons."""
    directory = item.path.relative_to(TESTS).parts[0]
    starts_daemons = "start" in item.fixturenames or harness.running in vars(item.module).values()
    return directory in E2E_DIRECTORIES or starts_daemons


def shares_a_fixture(item: pytest.Function) -> bool:
    """Whether the test uses a fixture of its module: it then runs in the same worker as the others."""
    definitions = item._fixtureinfo.name2fixturedefs
    return any(definitions[name][-1].scope == "module" for name in item.fixturenames if name in definitions)


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

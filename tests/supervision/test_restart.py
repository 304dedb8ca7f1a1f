"""The mapping of errors to failure kinds and restart decisions."""

from __future__ import annotations

import errno

import pytest
import trio

from mcpd.model.errors import (
    CallTimeout,
    HttpRefused,
    LimitReached,
    LinkLost,
    NeedsAuth,
    NoCommonVersion,
    Overloaded,
    ProtocolViolation,
    UpstreamRefused,
)
from mcpd.model.server_spec import RestartPolicy
from mcpd.model.status import ServerState
from mcpd.protocol.negotiate import NotStreamableHttp, ServerDiedDuringProbe
from mcpd.supervision.restart import (
    Backoff,
    Evidence,
    NextTry,
    NotMcpOutput,
    Wedged,
    classify_failure,
    is_bug,
    plan_recovery,
)
from mcpd.transports.child_process import CannotStart

LOST = LinkLost("it: exited with status 3", server="it")

TABLE: list[tuple[BaseException, Evidence, str, NextTry]] = [
    (CannotStart("no such file"), Evidence(), "spawn", NextTry.WAIT),
    (NoCommonVersion("it: speaks 1999", server="it"), Evidence(), "version", NextTry.WAIT),
    (Wedged("left 2 requests unanswered"), Evidence(), "wedged", NextTry.RETRY),
    (LOST, Evidence(returncode=3), "exited", NextTry.RETRY),
    (LOST, Evidence(returncode=0), "exited", NextTry.RETRY),
    (LOST, Evidence(returncode=-9), "killed", NextTry.RETRY),
    (LOST, Evidence(), "closed", NextTry.RETRY),
    (ServerDiedDuringProbe(), Evidence(returncode=1), "exited", NextTry.RETRY),
    (UpstreamRefused("it: no", server="it", upstream_code=-32603), Evidence(), "protocol", NextTry.RETRY),
    (ProtocolViolation("it: no object", server="it"), Evidence(), "protocol", NextTry.RETRY),
    (CallTimeout("it: took 5 s", server="it", after=5), Evidence(), "timeout", NextTry.RETRY),
    (trio.TooSlowError("tools/list took more than 15 s"), Evidence(), "timeout", NextTry.RETRY),
    (NotMcpOutput("30 s"), Evidence(unparsable_sample="Usage: it"), "protocol", NextTry.RETRY),
    (Overloaded("it: full", server="it"), Evidence(), "protocol", NextTry.RETRY),
    (LimitReached("it: twice", server="it", rule="$"), Evidence(), "protocol", NextTry.RETRY),
    (NeedsAuth("it: HTTP 401", server="it", status=401), Evidence(is_remote=True), "auth", NextTry.LOGIN),
    (HttpRefused("it: HTTP 404", server="it", status=404), Evidence(is_remote=True), "http", NextTry.WAIT),
    (HttpRefused("it: HTTP 405", server="it", status=405), Evidence(is_remote=True), "http", NextTry.WAIT),
    (HttpRefused("it: HTTP 307", server="it", status=307), Evidence(is_remote=True), "http", NextTry.WAIT),
    (HttpRefused("it: HTTP 429", server="it", status=429), Evidence(is_remote=True), "http", NextTry.RETRY),
    (HttpRefused("it: HTTP 500", server="it", status=500), Evidence(is_remote=True), "http", NextTry.RETRY),
    (HttpRefused("it: HTTP 503", server="it", status=503), Evidence(is_remote=True), "http", NextTry.RETRY),
    (NotStreamableHttp(["initialize: HTTP 404"], 404), Evidence(is_remote=True), "http", NextTry.WAIT),
    (NotStreamableHttp(["initialize: HTTP 501"], 501), Evidence(is_remote=True), "http", NextTry.WAIT),
    (NotStreamableHttp(["initialize: HTTP 500"], 500), Evidence(is_remote=True), "http", NextTry.RETRY),
    (NotStreamableHttp(["initialize: error -32600"]), Evidence(is_remote=True), "http", NextTry.WAIT),
    (LOST, Evidence(is_remote=True), "closed", NextTry.RETRY),
    (
        LinkLost("it: refused", server="it", may_have_run=False),
        Evidence(is_remote=True),
        "unreachable",
        NextTry.RETRY,
    ),
    (OSError(errno.EMFILE, "Too many open files"), Evidence(), "resources", NextTry.RETRY),
    (BlockingIOError(errno.EAGAIN, "Try again"), Evidence(), "resources", NextTry.RETRY),
    (OSError(errno.EIO, "I/O error"), Evidence(), "spawn", NextTry.RETRY),
    (ZeroDivisionError(), Evidence(), "internal", NextTry.RETRY),
]


@pytest.mark.parametrize(("error", "evidence", "kind", "verdict"), TABLE)
def test_every_error_has_a_failure_kind_and_a_verdict(
    error: BaseException, evidence: Evidence, kind: str, verdict: NextTry
) -> None:
    """Errors may be in groups. Only failures that are certain to repeat wait for a user."""
    for raised in (error, BaseExceptionGroup("", [BaseExceptionGroup("", [error])])):
        failure, decided = classify_failure(raised, evidence)
        assert (failure.kind.value, decided) == (kind, verdict)
        assert failure.message
        assert not failure.message.startswith("it: ")
        assert is_bug(raised) is (kind == "internal")


def test_text_of_an_unexpected_error_is_not_shown() -> None:
    """A library may quote the value that it refused."""
    failure, _ = classify_failure(ValueError("Bearer s3cret-token"), Evidence())
    assert failure.message == "an error in mcpd itself (ValueError); see its log"


def test_most_informative_of_several_errors_is_reported() -> None:
    """Ending an unresponsive server also loses its connection."""
    group = ExceptionGroup("", [LOST, Wedged("left 2 requests unanswered"), LOST])
    assert classify_failure(group, Evidence())[0].message == "left 2 requests unanswered"


def test_failure_contains_the_evidence() -> None:
    """The evidence is the exit status or the signal's name, and the last output."""
    failure, _ = classify_failure(LOST, Evidence(returncode=3, stderr=("out of luck",)))
    assert (failure.exit_code, failure.signal, failure.stderr) == (3, None, ("out of luck",))
    failure, _ = classify_failure(LOST, Evidence(returncode=-11))
    assert (failure.exit_code, failure.signal) == (None, "SIGSEGV")
    failure, _ = classify_failure(NotStreamableHttp(["initialize: HTTP 404"], 404), Evidence(is_remote=True))
    assert failure.http_status == 404
    assert classify_failure(LOST, Evidence(unparsable_output="2 lines"))[0].noise == "2 lines"
    failure, _ = classify_failure(LOST, Evidence(returncode=-40))  # a real-time signal has no name
    assert (failure.exit_code, failure.signal) == (None, None)


async def test_the_reason_of_a_refusal_names_no_step() -> None:
    """What helps depends on the definition: a login is not possible with an `Authorization` header."""
    plan = plan_recovery("it", NextTry.LOGIN, 0.0, Backoff(RestartPolicy(), lambda: 0.5))
    assert (plan.state, plan.reason) == (ServerState.NEEDS_AUTH, "it refuses access")

"""One attempt to have a connection: how far it has come, and what it failed of."""

from __future__ import annotations

import math

import attrs
import trio

from mcpd.model.package_runners import PackageRunner
from mcpd.model.server_spec import RestartPolicy
from mcpd.model.status import Failure
from mcpd.supervision.connect_strategy import ConnectStrategy
from mcpd.supervision.failure import Evidence, Verdict, classify_failure


@attrs.define(eq=False)
class Attempt:
    """Written by the server's task; a wish cancels its `scope`."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    package_runner: PackageRunner | None = None
    """What fetches the server, while that is waited for."""
    ready_at: float | None = None
    """When it was connected (`trio.current_time()`)."""
    last_success_at: float = -math.inf
    """When a call last succeeded, once the connection has ended."""
    has_ended: bool = False
    """Whether its end has been noted."""

    def was_stable(self, policy: RestartPolicy) -> bool:
        """Whether it lasted long enough, or worked late enough, for its failure to count as the first."""
        return self.ready_at is not None and (
            trio.current_time() - self.ready_at >= policy.stable
            or self.last_success_at - self.ready_at >= policy.proof
        )

    def diagnose(
        self, error: BaseException, evidence: Evidence, strategy: ConnectStrategy
    ) -> tuple[Failure, Verdict]:
        """What it failed of, with all the ways that were tried, and what is to be done. Secrets are in it."""
        failure, verdict = strategy.describe_attempts(*classify_failure(error, evidence))
        if self.package_runner is not None and evidence.returncode is not None:
            words = f"{self.package_runner.failure_message} ({failure.message})"
            failure = attrs.evolve(failure, message=words)
        return failure, verdict

"""The handlers of the `mcpd/login/…` and `mcpd/auth/…` methods."""

from __future__ import annotations

from mcpd.daemon_operations import Operations
from mcpd.model import api, login


async def begin(operations: Operations, params: login.LoginParams) -> login.LoginOffer:
    return await (await operations.logins()).begin(params)


async def answer(operations: Operations, params: login.LoginAnswerParams) -> api.EmptyResult:
    (await operations.logins()).answer(params)
    return api.EmptyResult()


async def wait(operations: Operations, params: login.LoginAttemptParam) -> login.LoginStatus:
    return await (await operations.logins()).wait(params.attempt)


async def cancel(operations: Operations, params: login.LoginAttemptParam) -> api.EmptyResult:
    (await operations.logins()).cancel(params.attempt)
    return api.EmptyResult()


async def logout(operations: Operations, params: login.LogoutParams) -> login.LogoutResult:
    return await (await operations.logins()).logout(params)


async def status(operations: Operations, params: login.AuthStatusParams) -> login.AuthStatus:
    return await (await operations.logins()).status(params.server, check=params.check)


async def refresh(operations: Operations, params: api.ServerParam) -> login.LoginStatus:
    return await (await operations.logins()).refresh(params.server)


async def explain(operations: Operations, params: api.ServerParam) -> login.AuthExplanation:
    return await (await operations.logins()).explain(params.server)

"""A login whose link another program than mcpctl, such as an editor, shows to a person."""

from __future__ import annotations

import attrs

from mcpd.auth.completed_login import CompletedLogin
from mcpd.auth.discovery import LoginError
from mcpd.auth.login_attempt import LoginAttempt
from mcpd.model.errors import LoginFailed


@attrs.frozen(eq=False)
class LoginLink:
    """The page of an attempt on this machine. Holding it does not keep the attempt alive."""

    server: str
    url: str = attrs.field(repr=False)
    """A loopback URL. Its page names the server and the scopes, and links to the authorization server."""
    issuer: str
    scopes: tuple[str, ...]
    _attempt: LoginAttempt

    @property
    def is_done(self) -> bool:
        """Whether somebody has logged in."""
        return isinstance(self._attempt.outcome, CompletedLogin)

    async def wait(self) -> None:
        """Wait until somebody has logged in, with this link or otherwise. Raises LoginFailed."""
        try:
            await self._attempt.wait()
        except LoginError as error:
            raise failed(error, self.server) from None


async def link_of(attempt: LoginAttempt) -> LoginLink:
    """Return the link as soon as there is one. Raises LoginFailed if the attempt ends before."""
    server = attempt.request.server
    try:
        offer = await attempt.wait_offer()
    except LoginError as error:
        raise failed(error, server) from None
    return LoginLink(server, offer.page, offer.issuer, offer.scopes or (), attempt)


def failed(error: LoginError, server: str | None) -> LoginFailed:
    """Return the error for the caller that requested the login."""
    prefix = f"{server}: " if server else ""
    later = "; try again later" if error.try_later else ""
    return LoginFailed(f"{prefix}{error}{later}", server=server, step=error.step)

"""Ways in whose cases take several steps: logins, rules of policies, and HTTP+SSE."""

from __future__ import annotations

import json
import socket
from contextlib import closing, suppress
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from tests.e2e.harness import BOUND, Client, Json, Refused
from tests.fuzz import messages
from tests.fuzz.generate import DIE, Writer
from tests.fuzz.target import Target, Wrong, answers, check_lines, first_answer
from tests.fuzz.targets import lines
from tests.fuzz.world import DENIED, HOSTILE, World


class Steps(Target):
    """Control requests in a row; each must get an answer."""

    def ask(self, client: Client, method: str, **params: object) -> Json:
        """Return the result, or an empty one if the daemon refuses."""
        try:
            result: Json = client.request(f"mcpd/{method}", **params)
        except Refused as refused:
            if "an error in mcpd itself" in refused.body["message"]:
                raise Wrong(str(refused)) from None
            return {}
        return result


class Logins(Steps):
    """A login to a server whose documents are those of the case, up to the use and the end of its tokens."""

    name = "login"
    batch = 5

    def send(self, number: int) -> None:
        dice = self.die(number)
        self.world.http.login = number
        with Client(self.world.daemon.socket) as client:
            if dice.random() < 0.2:
                self.ask(client, "auth/explain", server="account")
            offer = self.ask(client, "login/begin", server="account")
            if offer:
                self._return_from_browser(offer, dice)
                if dice.random() < 0.9:
                    self.ask(client, "login/cancel", attempt=offer["attempt"])
                self.ask(client, "login/wait", attempt=offer["attempt"])
            self.ask(client, "auth/status", server="account")
            self.ask(client, "auth/refresh", server="account")
            self.ask(client, "logout", server="account")

    @staticmethod
    def _return_from_browser(offer: Json, dice: DIE) -> None:
        asked = parse_qs(urlsplit(offer["url"]).query)
        given = {"state": asked.get("state", [""])[0], "code": "x", "iss": offer["issuer"]}
        if dice.random() < 0.3:
            given[dice.choice(tuple(given))] = dice.choice(("", "\xff", "y" * 3000))
        with suppress(httpx.HTTPError):
            httpx.get(f"{offer['redirect_uri']}?{urlencode(given)}", timeout=BOUND)


class Rules(Steps):
    """Policies with mistakes, applied to the running daemon. What the first rule denies stays denied.

    The rules apply only while their case runs: they may let calls wait for a person.
    """

    name = "policies"
    batch = 5
    counts_cpu = False
    """A reload compares every server with its definition. Clients do not wait for it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sound: Json = json.loads(world.daemon.config.read_text())

    def send(self, number: int) -> None:
        dice, file = self.die(number), self.world.daemon.config
        rules = Writer(dice).write([self._rule(dice) for _ in range(dice.choice((0, 1, 3, 30)))])
        whole = {**self._sound, "settings": {"policies": "RULES"}}
        allowed = {"decision": "allow", "servers": [messages.CALM]}
        always = b", ".join(json.dumps(each).encode() for each in (DENIED, allowed))
        text = json.dumps(whole).encode().replace(b'"RULES"', b"[%b, %b]" % (always, rules[1:-1] or b"{}"))
        file.write_bytes(text)
        with closing(self), Client(self.world.daemon.socket) as client:
            self.ask(client, "reload")
            for server in HOSTILE:
                client.send("mcpd/call", server=server, tool="echo", arguments={"case": number})
            for how in ({}, {"raw": True}, {"timeout": 1}):
                try:
                    client.call(messages.CALM, "pid", **how)
                except Refused as refused:
                    if refused.code == "denied":
                        continue
                    raise Wrong(f"a denied call got {refused.body}") from None
                raise Wrong("a denied call was sent")

    def close(self) -> None:
        """Restore the configuration."""
        self.world.daemon.config.write_text(json.dumps(self._sound))
        self.world.control.request("mcpd/reload")

    @staticmethod
    def _rule(dice: DIE) -> Json:
        patterns = ("*", "e*", "odd", "file:///*", "a?b", "echo@odd")
        members: Json = {
            "clients": [dice.choice(patterns)],
            "servers": [dice.choice(("odd", "hostile", "web"))],
            "tools": [dice.choice(patterns)],
            "resources": [dice.choice(patterns)],
            "annotations": {"readOnlyHint": True},
        }
        chosen = {name: value for name, value in members.items() if dice.random() < 0.3}
        limit = {"rate": dice.choice(("5/s", "1/min"))} if dice.random() < 0.5 else {"concurrent": 1}
        own: Json = {"allow": {}, "deny": {}, "ask": {"answer": "outside"}, "limit": limit}
        decision = dice.choice(tuple(own))
        return {"decision": decision, **chosen, **own[decision]}


class Sse(Target):
    """Messages of a client of HTTP+SSE. Each must get a response, and the stream contains only messages."""

    name = "sse"

    def send(self, number: int) -> None:
        dice = self.die(number)
        path = dice.choice((b"/sse", b"/servers/odd/sse"))
        with self._connect(b"GET", path, b"") as stream:
            opened = first_answer(stream, patience=0.0)
            _, found, rest = opened.partition(b"data: ")
            if not found:
                raise Wrong(f"no address for messages: {opened[:300]!r}")
            address = rest.partition(b"\n")[0].strip()
            for body in lines(dice, mcp_only=True):
                with self._connect(b"POST", address, body) as post:
                    got = first_answer(post)
                if not got.startswith(b"HTTP/1.1 "):
                    raise Wrong(f"not a response: {got[:300]!r}")
            events = answers(stream).split(b"\n")
            check_lines(b"".join(line[6:] + b"\n" for line in events if line.startswith(b"data: ")))

    def _connect(self, method: bytes, path: bytes, body: bytes) -> socket.socket:
        connection = self.world.endpoint.connection
        head = (
            b"%b %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %b\r\nAccept: */*\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        endpoint = self.world.endpoint
        with suppress(OSError):  # it may refuse a part, and close
            connection.sendall(
                head % (method, path, endpoint.port, endpoint.token.encode(), len(body)) + body
            )
        return connection

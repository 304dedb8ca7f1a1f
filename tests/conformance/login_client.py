"""The client in the scenarios about logins: a real daemon, and a person who visits one URL.

The daemon discovers, registers, requests tokens, and asks for more scopes. This module only does what a
person does: it visits the authorization URL, reports the address that the browser ends at, and tries again
what was refused.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.conformance.client import plausible
from tests.e2e.harness import Client, Daemon, Refused, running

Json = dict[str, Any]
MAX_LOGINS = 3
"""A person gives up after so many."""
METADATA_URL = "https://conformance-test.local/client-metadata.json"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def visit(url: str) -> str:
    """Return the address that the authorization server redirects the browser to."""
    browser = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    try:
        with browser.open(url, timeout=30) as answer:
            raise SystemExit(f"the authorization server answered with HTTP {answer.status}")
    except HTTPError as error:
        with error:
            return str(error.headers["Location"])


def settings(scenario: str) -> Json:
    """Return `oauth` of the definition: what the scenario gives to its user."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    match scenario.removeprefix("auth/"):
        case "basic-cimd":
            return {"clientMetadataUrl": METADATA_URL}
        case "pre-registration":
            return {"clientId": context["client_id"], "clientSecret": context["client_secret"]}
        case "client-credentials-basic":
            client = {"clientId": context["client_id"], "clientSecret": context["client_secret"]}
            return {"grant": "client_credentials", **client}
        case "client-credentials-jwt":
            client = {"clientId": context["client_id"], "privateKey": context["private_key_pem"]}
            return {"grant": "client_credentials", **client}
        case "enterprise-managed-authorization":
            provider = {
                "tokenEndpoint": context["idp_token_endpoint"],
                "clientId": context["idp_client_id"],
                "idToken": context["idp_id_token"],
            }
            client = {"clientId": context["client_id"], "clientSecret": context["client_secret"]}
            return {"grant": "enterprise", "identityProvider": provider, **client}
        case "wif-jwt-bearer":
            return {"grant": "workload", "assertion": context["valid_jwt"]}
    return {}


class Person:
    """Uses the server, and logs in when that is asked for."""

    def __init__(self, daemon: Daemon) -> None:
        self.client: Client = daemon.client()
        self.daemon = daemon
        self.logins = 0

    def log_in(self) -> None:
        if self.logins == MAX_LOGINS:
            raise SystemExit("the server asks for a login again and again")
        self.logins += 1
        offer = self.client.request("mcpd/login/begin", server="server")
        waiting = self.client.send("mcpd/login/wait", attempt=offer["attempt"])
        self.client.request("mcpd/login/answer", attempt=offer["attempt"], url=visit(offer["url"]))
        self.client.answer(waiting)

    def connect(self) -> None:
        """Connect, and log in if that is what the server wants."""
        while True:
            status = self.client.request("mcpd/connect", server="server", wait=60)["server"]
            if status["status"] == "connected":
                return
            if status["status"] != "needs-auth":
                raise SystemExit(f"the server is {status['status']}: {status['last_error']}")
            self.log_in()

    def call(self, tool: str, arguments: Json) -> None:
        """Call a tool, and log in for it if that is what the server wants."""
        while True:
            try:
                self.client.call("server", tool, arguments)
                return
            except Refused as error:
                if error.body["data"]["exit"] != 4:
                    raise
            self.log_in()
            self.connect()


def main(url: str, scenario: str) -> None:
    definition = {"url": url, "type": "http", "oauth": settings(scenario)}
    with (
        tempfile.TemporaryDirectory() as home,
        running(Path(home), {"server": definition}, "--debug") as daemon,
    ):
        try:
            person = Person(daemon)
            person.connect()
            for tool in person.client.request("mcpd/tools", server="server")["tools"]:
                person.call(tool["name"], plausible(tool.get("inputSchema", {})))
        except Refused as error:
            raise SystemExit(error.body["message"]) from None
        finally:
            print(daemon.log, file=sys.stderr)

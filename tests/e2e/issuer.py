"""An authorization server that only publishes its keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from tests.e2e.harness import Json

AUDIENCE = "https://localhost/mcp"
KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
OTHER_KEY = ECKey.generate_key("P-256", parameters={"kid": "two"})


class Issuer:
    """Publishes keys as an authorization server does."""

    def __init__(self) -> None:
        self.keys = [KEY]
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body: Json = {"keys": [key.as_dict(private=False) for key in issuer.keys]}
                if self.path.endswith("openid-configuration"):
                    body = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks"}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def token(self, person: str = "ada", key: Any = KEY, **claims: object) -> str:
        now = int(time.time())
        known = {"iss": self.url, "aud": AUDIENCE, "sub": person, "exp": now + 600, "iat": now}
        content = {name: claim for name, claim in {**known, **claims}.items() if claim is not None}
        header = {"alg": "HS256" if isinstance(key, OctKey) else "ES256"}
        if isinstance(key, ECKey):
            header["kid"] = str(key.kid)
        return jwt.encode(header, content, key, algorithms=["HS256", "ES256"])


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    thread = threading.Thread(target=issuer.server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.server.shutdown()
        thread.join()
        issuer.server.server_close()

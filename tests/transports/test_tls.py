"""TLS: certificate checks, error messages, and private certificate authorities."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trio

from mcpd.model.errors import LinkLost
from mcpd.model.server_spec import RemoteSpec
from mcpd.transports.child_process import CannotStart
from mcpd.transports.http_client.client_factory import proxy_for
from mcpd.transports.outgoing_request import AwaitedExchange
from mcpd.transports.streamable_http import open_http
from tests.fakes.http import ModernScript, fake_http
from tests.transports.remote import talking

BOUND = 30


class Authority:
    """A private certificate authority in a directory."""

    def __init__(self, home: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not there")
        self.home = home
        self.file = home / "ca.pem"
        self._key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # required by Python 3.13 and later
        outputs = ("-keyout", "ca.key", "-out", "ca.pem")
        self._openssl("req", "-x509", *self._key, *outputs, "-subj", "/CN=own", *usage)

    def server(self, names: str, days: int = 2) -> ssl.SSLContext:
        """Return the TLS context of a server with a certificate for `names` that is valid for `days`."""
        (self.home / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid")
        self._openssl("req", *self._key, "-keyout", "it.key", "-out", "it.csr", "-subj", "/CN=it")
        signed_by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        with_names = ("-extfile", "names", "-days", str(days))
        self._openssl("x509", "-req", "-in", "it.csr", "-out", "it.pem", *signed_by, *with_names)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.home / "it.pem", self.home / "it.key")
        return context

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.home, check=True, capture_output=True)


async def refusal(url: str, ca_file: str | None) -> LinkLost:
    """Return the error of the first request to that server."""
    async with open_http(RemoteSpec(name="it", kind="http", url=url, ca_file=ca_file), {}) as link:
        exchange = AwaitedExchange()
        link.submit(exchange, "x")
        with pytest.raises(LinkLost), trio.fail_after(BOUND):
            await link.run()
    assert isinstance(exchange.error, LinkLost)
    return exchange.error


async def test_private_ca_is_trusted_when_configured(tmp_path: Path) -> None:
    """The definition has `caFile`."""
    authority = Authority(tmp_path)
    async with (
        fake_http(ModernScript(), tls=authority.server("IP:127.0.0.1")) as server,
        talking(server.url, ca_file=str(authority.file)) as talk,
    ):
        assert talk.upstream.era == "modern"


@pytest.mark.parametrize(
    ("names", "days", "trusted", "words"),
    [
        ("IP:127.0.0.1", 2, False, "unable to get local issuer|self-signed"),
        ("DNS:elsewhere.example", 2, True, "mismatch|not valid for"),
        ("IP:127.0.0.1", -1, True, "expired"),
    ],
)
async def test_invalid_certificate_is_refused_with_the_reason(
    tmp_path: Path, names: str, days: int, trusted: bool, words: str
) -> None:
    """No request is sent, and checks cannot be disabled."""
    authority = Authority(tmp_path)
    async with fake_http(ModernScript(), tls=authority.server(names, days)) as server:
        error = await refusal(server.url, str(authority.file) if trusted else None)
        assert "certificate was rejected" in error.message
        assert re.search(words, error.message), error.message
        assert not error.may_have_run
        assert server.requests == []


async def test_server_without_tls_is_explained() -> None:
    """For `https://` with a plain HTTP port, OpenSSL reports a wrong version number."""

    async def complain(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, complain, [listener])
        port = listener.socket.getsockname()[1]
        error = await refusal(f"https://127.0.0.1:{port}/mcp", None)
        nursery.cancel_scope.cancel()
    assert "the server does not use TLS (should the URL start with http://?)" in error.message
    assert not error.may_have_run


async def test_unusable_ca_file_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "large.pem").write_bytes(b"#" * (1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe.pem")
    for name in ("ca.pem", "empty.pem", "large.pem", "pipe.pem", "missing.pem"):
        spec = RemoteSpec(name="it", kind="http", url="https://h/", ca_file=str(tmp_path / name))
        with pytest.raises(CannotStart, match=name):
            async with open_http(spec, {}):
                pass


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://h.example/", {}, None),
        ("https://h.example/", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://h.example/", {"https_proxy": "p:1"}, "http://p:1"),
        ("http://h.example/", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://h.example/", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("https://h.example/", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other,.example"}, None),
        ("https://127.0.0.1/", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http://localhost:80/", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://[::1]:80/", {"HTTP_PROXY": "http://p:1"}, None),
    ],
)
def test_proxies_come_from_the_environment(url: str, environ: dict[str, str], proxy: str | None) -> None:
    """Both spellings are read; loopback addresses have no proxy."""
    assert proxy_for(url, environ) == proxy

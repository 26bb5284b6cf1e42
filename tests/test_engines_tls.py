"""https engines: certificates are always checked, against the public authorities or those of --engine-ca-file."""

import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine_story import QUICK, small_host
from tests.raw_server import RawServer, raw_server, response
from tests.toolkit import vime
from vime_sync.engines.http import Client
from vime_sync.engines.spec import parse_engine
from vime_sync.errors import EngineUnreachable

KEY = "sk-VERY-SECRET"


def make_certificate(directory: Path, name: str) -> Path:
    """One file with a key and a certificate that it signed itself, for that name."""
    directory.mkdir(exist_ok=True)
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=a test", "-addext", f"subjectAltName={name}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("here"), "IP:127.0.0.1")


def context(certificate: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return tls


def client_of(server: RawServer, ca_file: Path | None) -> Client:
    settings = replace(QUICK, api_key=KEY, ca_file=None if ca_file is None else str(ca_file))
    return Client(parse_engine(f"webhook=https://{server.address}/hook?token=SECRET"), settings)


def test_a_named_authority_is_believed(certificate: Path) -> None:
    with raw_server(response(b"{}"), tls=context(certificate)) as server:
        assert client_of(server, certificate).tell("", {}).is_success
        assert f"Authorization: Bearer {KEY}".encode() in server.requests[0]


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_another_one_is_not_and_nothing_was_said_to_it(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(certificate))  # settings are ours alone
    with raw_server(response(b"{}"), tls=context(certificate)) as server:
        for path in ("", "/asked"):
            with pytest.raises(EngineUnreachable) as caught:
                _ = client_of(server, None).ask(path) if path else client_of(server, None).tell(path, {})
            assert "certificate" in caught.value.message and "--engine-ca-file" in caught.value.hint
            assert "SECRET" not in caught.value.message
        assert server.requests == []


@pytest.mark.parametrize("name", ["DNS:elsewhere.example", "IP:127.0.0.2", "DNS:127.0.0.1"])
def test_a_certificate_for_another_name_is_refused(tmp_path: Path, name: str) -> None:
    certificate = make_certificate(tmp_path, name)
    with raw_server(response(b"{}"), tls=context(certificate)) as server:
        with pytest.raises(EngineUnreachable):
            client_of(server, certificate).tell("", {})
        assert server.requests == []


def test_a_server_that_speaks_no_tls(certificate: Path) -> None:
    with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n", greets=True) as server, pytest.raises(EngineUnreachable):
        client_of(server, certificate).tell("", {})


def test_a_handshake_that_never_ends_means_that_nothing_was_sent(certificate: Path) -> None:
    with raw_server(b"") as server, pytest.raises(EngineUnreachable):
        client_of(server, certificate).tell("", {})


def test_a_key_is_not_sent_on_from_https_to_http(certificate: Path) -> None:
    with raw_server(response(b"{}")) as plain:
        away = response(b"", status="302 Found", headers=[f"Location: http://{plain.address}/"])
        with raw_server(away, tls=context(certificate)) as server:
            assert client_of(server, certificate).tell("", {}).status == 302
        assert plain.requests == []


def test_pull_with_the_authority_and_without(tmp_path: Path, certificate: Path) -> None:
    host = small_host(tmp_path)
    with raw_server(response(b""), tls=context(certificate)) as server:
        engine = ("--engine", f"webhook=https://{server.address}/hook")
        result = host.pull(*engine)
        assert (result.code, result.error["id"]) == (30, "engine_unreachable")
        assert "--engine-ca-file" in result.error["hint"]
        result = host.pull(*engine, "--engine-ca-file", certificate)
        assert (result.code, len(server.requests)) == (0, 1), result.stderr
        assert b'"schema": "vime-sync/reload/1"' in server.requests[0]


@pytest.mark.parametrize("kind", ["absent", "directory", "nonsense", "key alone"])
def test_a_file_without_certificates_is_said_plainly(tmp_path: Path, certificate: Path, kind: str) -> None:
    host = small_host(tmp_path)
    file = tmp_path / "ca.pem"
    if kind == "directory":
        file.mkdir()
    elif kind == "nonsense":
        file.write_text("nonsense")
    elif kind == "key alone":
        file.write_bytes(certificate.with_name("key.pem").read_bytes())
    with raw_server(response(b""), tls=context(certificate)) as server:
        engine = f"webhook=https://{server.address}/hook"
        result = vime("reload", "--local", host.local, "--engine", engine, "--engine-ca-file", file)
        assert result.code in (2, 30), result.stderr
        assert "Traceback" not in result.stderr and server.requests == []

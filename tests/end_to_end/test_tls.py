"""TLS end to end: through emulated links, and what a person is told when a certificate does not fit."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from end_to_end_tools import gca

from broker_server.broker.access import CertificateNames, gca_rules
from broker_server.broker.tcp import TcpBroker
from broker_server.broker.tls import server_context
from sim.certificates import Authority


@pytest.fixture
async def tls_broker(tmp_path: Path) -> AsyncIterator[tuple[int, Path]]:
    """A broker whose self-signed certificate bears the name localhost and no address; its port and its CA file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH; the TLS test makes its certificate with it")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    subprocess.run([*command.split(), *more], check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    async with TcpBroker() as broker:
        yield await broker.start(ssl=context), tmp_path / "cert"


async def test_devices_verify_the_broker_through_their_links(simulate, tls_broker: tuple[int, Path]) -> None:
    port, ca = tls_broker
    small = ("demo", "--rounds", "1", "--link", "none")
    secured = await asyncio.to_thread(simulate, *small, "--broker", f"mqtts://localhost:{port}", "--ca-file", str(ca))
    plain = await asyncio.to_thread(simulate, *small)
    assert secured["state_sha256"] == plain["state_sha256"]
    assert secured["message_bytes"] == plain["message_bytes"]
    assert secured["stream_bytes"]["up"] > plain["stream_bytes"]["up"]


@pytest.mark.parametrize(
    ("url", "with_ca", "mend"),
    [
        ("mqtts://127.0.0.1:{port}", True, "subjectAltName"),
        ("mqtts://localhost:{port}", False, "--ca-file"),
    ],
)
async def test_a_certificate_that_does_not_fit(tls_broker, tmp_path: Path, url: str, with_ca: bool, mend: str) -> None:
    port, ca = tls_broker
    data = tmp_path / "records.npz"
    np.savez(data, samples=np.zeros((20, 3)))
    arguments = ["device", "--run", "r", "--id", "d", "--data", str(data), "--broker", url.format(port=port)]
    done = await asyncio.to_thread(gca, *arguments, *(["--ca-file", str(ca)] if with_ca else []))
    assert done.returncode == 3
    assert done.stderr.startswith("error: ") and mend in done.stderr
    assert "127.0.0.1" in done.stderr or "localhost" in done.stderr


async def test_a_fleet_shares_the_servers_certificate_on_a_broker_that_asks_for_one(simulate, tmp_path: Path) -> None:
    """Emulated devices have no certificate each: all connect as the server, who may use every topic of the project."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH; certificates are made with it")
    authority = Authority(tmp_path / "certs")
    host, client = authority.host(["localhost"]), authority.client("server")
    context = server_context(host, host.with_suffix(".key"), authority.certificate)
    async with TcpBroker(CertificateNames(), gca_rules()) as broker:
        url = f"mqtts://localhost:{await broker.start(ssl=context)}"
        files = [
            "--ca-file",
            str(authority.certificate),
            "--cert",
            str(client),
            "--key",
            str(client.with_suffix(".key")),
        ]
        done = await asyncio.to_thread(
            simulate, "demo", "--devices", "2", "--rounds", "1", "--link", "none", "--broker", url, *files
        )
        assert done["rounds"] == 1
        denied = await asyncio.to_thread(
            gca, "simulate", "demo", "--rounds", "1", "--broker", url, *files[:2], timeout=60
        )
    assert denied.returncode == 3 and "--cert and --key" in denied.stderr and denied.stderr.count("\n") == 1

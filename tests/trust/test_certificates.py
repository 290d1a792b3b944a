"""`gca certs`, and what brokers and clients do with certificates that are missing, expired, foreign or another's."""

import ssl
import stat
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from brokers import RunningBroker, open_broker
from trust.credentials import make_certificates

from broker_server.broker.tls import common_name, server_context
from edge_client.errors import ConfigError, ConnectionLost, EnvironmentFault, GcaError
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import Endpoint, endpoint
from edge_client.transport.mqtt import connector
from sim.certificates import Authority


def own(certs: Path, name: str, folder: str = "clients") -> dict[str, str]:
    mine = certs / folder / name
    return {"cert_file": f"{mine}.crt", "key_file": f"{mine}.key"}


async def refusal(where: Endpoint) -> GcaError:
    with pytest.raises(GcaError) as caught:
        async with connector(where)(Settings("client", keepalive=5)):
            pass
    return caught.value


def names_in(certificate: Path) -> set[str]:
    """What openssl reads under subjectAltName."""
    command = ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(certificate)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    return {entry.strip() for entry in text.splitlines()[1].split(",")}


def shake_hands(context: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    """A handshake in memory, client with server; return the version they agree on."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = context.wrap_bio(a, b, server_side=True)
    client_side = client.wrap_bio(b, a, server_hostname=name)
    for _ in range(4):
        for side in (client_side, server_side):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client_side.version()


# ---- making them ---------------------------------------------------------------------------------------------------


def test_keys_are_for_their_owner_alone(certs: Path) -> None:
    keys = list(certs.rglob("*.key"))
    assert len(keys) == 1 + 1 + 5
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)


def test_a_host_has_all_its_names_and_addresses(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    path = authority.host(["broker.local", "192.168.1.10", "fd00::1", "*.shelf.example"])
    assert path.name == "broker.local.crt"
    assert names_in(path) == {
        "DNS:broker.local", "IP Address:192.168.1.10", "IP Address:FD00:0:0:0:0:0:0:1", "DNS:*.shelf.example"
    }  # fmt: skip
    context = server_context(path, path.with_suffix(".key"))
    client = ssl.create_default_context(cafile=str(authority.certificate))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does by itself from 3.13 on
    for name in ("broker.local", "192.168.1.10", "fd00::1", "pi.shelf.example"):
        assert shake_hands(context, client, name) == "TLSv1.3"
    for name in ("other.local", "192.168.1.11"):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(context, client, name)


@pytest.mark.parametrize("name", ["", "mqtts://host", "a b", "host:8883", "1.2.3", "-x", "x,DNS:evil", "x\n", "é"])
def test_what_is_no_host_is_refused_and_leaves_nothing(certs: Path, name: str) -> None:
    before = sorted(certs.rglob("*"))
    with pytest.raises(ConfigError, match="neither a host name nor an address"):
        Authority(certs).host([name])
    assert sorted(certs.rglob("*")) == before


@pytest.mark.parametrize("name", ["", "a/b", "../ca", "x/CN=server", "+", "a\n"])
def test_what_is_no_device_is_refused(certs: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--client"):
        Authority(certs).client(name)


def test_nothing_is_overwritten(certs: Path) -> None:
    before = (certs / "clients" / "a.key").read_bytes()
    with pytest.raises(ConfigError, match=r"a\.crt: exists"):
        Authority(certs).client("a")
    assert (certs / "clients" / "a.key").read_bytes() == before


def test_a_folder_with_half_a_ca_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("")
    with pytest.raises(EnvironmentFault, match="a CA needs both"):
        Authority(tmp_path)


def test_several_common_names_are_nobodys() -> None:
    def subject(*names: str) -> dict[str, object]:
        return {"subject": tuple((("commonName", name),) for name in names)}

    assert common_name(subject("pi-1")) == "pi-1"
    assert common_name(subject("pi-1", "server")) is common_name(subject()) is common_name({}) is None
    assert common_name(None) is None


# ---- using them ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def mutual(broker_kind: str, certs: Path):
    async with open_broker(broker_kind, rules=True, certs=certs) as running:
        yield running


async def test_a_client_is_who_its_certificate_says_whatever_it_calls_itself(mutual: RunningBroker, certs) -> None:
    where = endpoint(mutual.url, username="server", password="x", ca_file=str(certs / "ca.crt"), **own(certs, "a"))
    async with connector(where)(Settings("server-tiny")) as transport:
        await transport.subscribe("gca/v1/r/dn/a/#")
        await transport.publish("gca/v1/r/pres/a", b"mine")
    if mutual.kind == "embedded":  # mosquitto grants what it will not deliver, see test_intruders.py
        async with connector(where)(Settings("again")) as transport:
            with pytest.raises(EnvironmentFault, match="ACL"):
                await transport.subscribe("gca/v1/r/up/#")


async def test_without_a_certificate_the_error_says_what_to_give(mutual: RunningBroker, certs: Path) -> None:
    error = await refusal(endpoint(mutual.url, ca_file=str(certs / "ca.crt"), username="a", password="guess"))
    assert isinstance(error, EnvironmentFault)
    assert "--cert and --key" in str(error) and "guess" not in str(error)


async def test_a_handshake_that_fails_is_told_to_the_operator_once(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = make_certificates(tmp_path / "foreign")
    files = {"cert_file": str(foreign / "clients" / "a.crt"), "key_file": str(foreign / "clients" / "a.key")}
    async with open_broker("embedded", rules=True, certs=certs) as broker:
        for _ in range(2):
            await refusal(endpoint(broker.url, ca_file=str(certs / "ca.crt"), **files))
    told = [record.getMessage() for record in caplog.records if "handshake" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("a client's TLS handshake failed: ")


async def test_expired_foreign_and_misused_certificates_are_refused(
    mutual: RunningBroker, certs: Path, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    other.client("a")
    for files in (own(other.directory, "a"), own(certs, "expired"), own(certs, "localhost", "hosts")):
        error = await refusal(endpoint(mutual.url, ca_file=str(certs / "ca.crt"), **files))
        assert files["cert_file"] in str(error)
        # asyncio ends a failed handshake without saying why, so the embedded broker's client may hope and try again
        assert isinstance(error, EnvironmentFault if mutual.kind == "mosquitto" else ConnectionLost)


def test_no_device_can_play_the_broker(certs: Path) -> None:
    """Its certificate is for clients."""
    context = server_context(certs / "clients" / "a.crt", certs / "clients" / "a.key")
    client = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    client.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake_hands(context, client, "localhost")


async def test_an_address_that_the_certificate_lacks_is_named(mutual: RunningBroker, certs: Path) -> None:
    where = endpoint(mutual.url, ca_file=str(certs / "ca.crt"), **own(certs, "a"))
    error = await refusal(replace(where, host="127.0.0.1"))
    assert isinstance(error, EnvironmentFault)
    assert "not valid for '127.0.0.1'" in str(error) and "subjectAltName" in str(error)


@pytest.mark.parametrize(
    ("url", "files", "told"),
    [
        ("mqtts://h", {"cert_file": "c"}, "give both"),
        ("mqtts://h", {"key_file": "k"}, "give both"),
        ("mqtt://h", {"ca_file": "ca"}, "--ca-file means nothing to mqtt://"),
        ("mqtt://h", {"cert_file": "c", "key_file": "k"}, "--cert means nothing to mqtt://"),
    ],
)
def test_files_that_would_be_ignored_are_refused(url: str, files: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        endpoint(url, **files)


async def test_a_key_with_a_passphrase_or_of_another_is_told_without_asking(certs: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes128", "-passout", "pass:secret", "-out", str(locked), "-in"]
    subprocess.run([*command, str(certs / "clients/a.key")], check=True, capture_output=True, timeout=30)
    for key in (locked, certs / "clients" / "b.key", tmp_path / "absent"):
        files = {"cert_file": str(certs / "clients" / "a.crt"), "key_file": str(key)}
        error = await refusal(endpoint("mqtts://localhost:1", **files))
        assert isinstance(error, EnvironmentFault) and str(key) in str(error)
        with pytest.raises(EnvironmentFault, match="passphrase"):
            server_context(certs / "clients" / "a.crt", key)

"""`gca doctor` on sick machines and beside sick brokers."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from brokers import open_broker
from end_to_end_tools import gca

from broker_server.broker.limits import Limits
from edge_client.errors import EnvironmentFault
from edge_client.protocol.chunks import MAX_CHUNK
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector
from sim import doctor
from sim.broker_check import AWAY, NEEDS_MESSAGE, examine_broker, require_broker
from sim.doctor import Finding

HEALTHY = {"python", "numpy", "msgpack", "msgspec", "aiomqtt", "paho-mqtt", "torch", "sklearn", "typer",
           "processor cores", "memory", "file descriptors", "training", "GPU", "mosquitto", "datasets"}  # fmt: skip


def findings(out: str) -> dict[str, dict[str, Any]]:
    return {one["what"]: one for one in json.loads(out)}


def with_package(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    """Put a package of this name before the real one, for processes that are started from now on."""
    (folder / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_every_check_has_its_line() -> None:
    done = gca("doctor", "--json")
    found = findings(done.stdout)
    assert set(found) >= HEALTHY and {one["state"] for one in found.values()} <= {"ok", "note"}
    assert "breast_cancer" in found["datasets"]["detail"]
    assert done.returncode == 0


def test_a_package_that_dies_of_an_illegal_instruction_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    with_package(tmp_path, monkeypatch, "numpy", dies)
    done = gca("doctor", "--json")
    numpy = findings(done.stdout)["numpy"]
    assert done.returncode == 3 and numpy["state"] == "missing"
    assert "SIGILL" in numpy["detail"] and "processor" in numpy["detail"]


def test_a_broker_is_not_asked_without_what_that_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_package(tmp_path, monkeypatch, "msgspec", "raise ImportError('built for another Python')")
    done = gca("doctor", "--json", "--broker", "mqtt://127.0.0.1:1")
    found = findings(done.stdout)
    assert (done.returncode, done.stderr) == (3, "")
    assert found["msgspec"]["state"] == "missing" and "without the packages above" in found["broker"]["detail"]


def test_a_package_that_only_servers_need_may_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_package(tmp_path, monkeypatch, "torch", "raise ImportError('libgomp.so.1 is not there')")
    done = gca("doctor")
    (line,) = [line for line in done.stdout.splitlines() if " torch " in line]
    assert done.returncode == 0
    assert line.startswith("note") and "libgomp.so.1 is not there" in line and "pip install '.[sim]'" in line


def test_what_a_device_does_without_is_no_fault() -> None:
    def look() -> Finding:
        raise ModuleNotFoundError("no", name="threadpoolctl")

    found = doctor._with_packages("memory", look, sound=True)
    assert found == Finding("memory", "note", "not looked at without threadpoolctl, which a device does not need")
    assert doctor._with_packages("memory", look, sound=False).detail == "not looked at without the packages above"


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.1.0", "missing"), ("2.2.0", "ok"), ("2.10.0", "ok"), ("10.0", "ok"), ("1.6.1", "missing")],
)
def test_versions_of_paho_are_numbers(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    monkeypatch.setattr(doctor, "version", lambda _: version)
    found = doctor._paho()
    assert found.state == state and version in found.detail


def test_the_needed_size_is_a_chunk_and_its_envelope() -> None:
    assert NEEDS_MESSAGE == MAX_CHUNK + 1_024


@pytest.mark.parametrize(
    ("limit", "state", "told"),
    [
        (3_000, "missing", "1024 bytes passed, 4096 did not, but 66560 are needed"),
        (66_000, "missing", "16384 bytes passed, 66560 did not, but 66560 are needed"),
        (100_000, "ok", "66560 bytes passed, 262144 did not; 66560 are needed"),
        (2_000_000, "ok", "1048576 bytes and perhaps more"),
    ],
)
async def test_the_largest_message_is_found_between_two_sizes(limit: int, state: str, told: str) -> None:
    async with open_broker("embedded", limits=Limits(max_packet_size=limit)) as broker:
        found = {one.what: one for one in await examine_broker(endpoint(broker.url))}
    assert found["largest message"].state == state and found["largest message"].detail.startswith(told)
    assert {found[what].state for what in ("broker", "QoS 1", "round trip", "retained")} == {"ok"}


async def test_nothing_stays_behind_on_the_broker() -> None:
    async with open_broker("embedded") as broker:
        await examine_broker(endpoint(broker.url))
        assert broker.server.counters.retained == 0
        async with connector(endpoint(broker.url))(Settings("later")):  # by now the last goodbye has arrived
            assert broker.server.counters.sessions == 1


@pytest.mark.parametrize("kept", [1, 700, AWAY - 1])
async def test_a_broker_that_drops_what_comes_while_a_client_is_away_is_found_out(kept: int) -> None:
    """It acknowledges the messages all the same."""
    async with open_broker("embedded", limits=Limits(offline_messages=kept)) as broker:
        found = {one.what: one for one in await examine_broker(endpoint(broker.url))}
    assert found["while away"].state == "note"
    assert found["while away"].detail.startswith(f"{kept} of {AWAY} messages were kept, the rest dropped")
    assert {one.state for what, one in found.items() if what != "while away"} == {"ok"}


@pytest.mark.mosquitto
async def test_mosquitto_as_it_comes_drops_and_as_we_set_it_up_does_not() -> None:
    async with open_broker("mosquitto") as broker:
        found = {one.what: one for one in await examine_broker(endpoint(broker.url))}
    assert found["while away"] == Finding("while away", "ok", f"{AWAY} messages were kept, and perhaps more are")
    async with open_broker("mosquitto", own_limits=True) as broker:
        first = (await examine_broker(endpoint(broker.url)))[-1]
    assert first.state == "note" and re.match(r"10\d\d of 1200 messages were kept", first.detail), first.detail
    assert "max_queued_messages" in first.detail


async def test_a_broker_that_keeps_no_session_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.broker_check.AWAY_S", 0.3)
    monkeypatch.setattr("sim.broker_check.Settings", lambda *a, **named: Settings(*a, **{**named, "persistent": False}))
    async with open_broker("embedded") as broker:
        found = (await examine_broker(endpoint(broker.url)))[-1]
    assert found.state == "note" and found.detail.startswith("not checked: ")


async def test_a_device_finds_the_broker_fit_under_the_access_rules_too() -> None:
    async with open_broker("embedded", users={"pi-1": "one"}, rules=True) as broker:
        (refused,) = await examine_broker(endpoint(broker.url, username="pi-1", password="two"))
        found = await examine_broker(endpoint(broker.url, username="pi-1", password="one"))
    assert refused.state == "missing" and "GCA_PASSWORD" in refused.detail
    assert len(found) == 6 and {one.state for one in found} == {"ok"}


async def test_a_run_requires_room_for_its_largest_message() -> None:
    async with open_broker("embedded") as broker:
        await require_broker(endpoint(broker.url))
    async with open_broker("embedded", limits=Limits(max_packet_size=66_000)) as broker:
        with pytest.raises(EnvironmentFault, match=r"66560 did not.*gca doctor --broker mqtt://"):
            await require_broker(endpoint(broker.url))


async def test_a_run_that_finds_no_broker_says_its_address_and_the_mend_once() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        await require_broker(endpoint("mqtt://127.0.0.1:1"))
    told = str(caught.value)
    assert told.startswith("no connection to mqtt://127.0.0.1:1: ") and "refused; check that it runs" in told
    assert told.endswith("; look with gca doctor --broker mqtt://127.0.0.1:1") and told.count("127.0.0.1") == 2


async def test_a_broker_that_speaks_tls_alone_is_guessed_at() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (found,) = await examine_broker(endpoint(f"mqtt://127.0.0.1:{port}"))
    assert "closed before it answered; perhaps it wants TLS: mqtts://127.0.0.1; check" in found.detail


def test_a_bad_address_is_a_usage_error(cli) -> None:
    said = cli("doctor", "--broker", "http://example.org", "--json")
    assert said.code == 2 and "mqtt://HOST:PORT" in said.err

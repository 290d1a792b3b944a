"""`gca server` and `gca device` as on real machines, on both brokers, with what goes wrong there."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from brokers import RunningBroker
from end_to_end_tools import HANGS_S

from broker_server.study.results import balance
from broker_server.study.store import StudyStore
from edge_client.protocol import topics
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import SERVER, RoundState
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector

TWO = ("demo", "--devices", "2", "--rounds", "3", "--set", "training.upload_fraction=0.5")


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    """Records of three devices."""
    paths = []
    for number in range(3):
        draw = np.random.default_rng(number)
        path = tmp_path / f"records-{number}.npz"
        test, labels = draw.normal(size=(40, 5)), np.arange(40) % 2
        np.savez(path, samples=draw.normal(size=(60, 5)), test=test + 3 * labels[:, None], labels=labels)
        paths.append(path)
    return paths


class Program:
    """A `gca` command and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    async def ended(self, seconds: float = HANGS_S) -> int:
        async with asyncio.timeout(seconds):
            await self._reading
            return await self.process.wait()

    async def says(self, text: str, seconds: float = HANGS_S) -> None:
        async with asyncio.timeout(seconds):
            while not any(text in line for line in self.lines):
                assert not self._reading.done(), self.lines
                await asyncio.sleep(0.05)


@asynccontextmanager
async def gca(*arguments: str) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-m", "sim.cli", *arguments, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def server(broker: RunningBroker, folder: Path, *arguments: str):
    return gca("server", *TWO, "--broker", broker.url, "--run", "shelf", "--output", str(folder), *arguments)


def device(broker: RunningBroker, name: str, records: Path, *arguments: str):
    return gca("device", "--broker", broker.url, "--run", "shelf", "--id", name, "--data", str(records), *arguments)


async def test_devices_join_a_server_and_all_count_the_same(broker, tmp_path: Path, records) -> None:
    async with server(broker, tmp_path / "study") as serving:
        await serving.says("have 0, need 2")  # from here on nothing that a device says is said to nobody
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (serving, one, other)] == [0, 0, 0], (serving.lines, one.lines)
    assert any("round 3: completed, accuracy" in line for line in one.lines)
    assert one.lines[-1] == "run shelf completed after round 3"
    said = "\n".join(serving.lines)
    assert "Mean over devices" in said and "full parameters" in said and serving.lines[-1].startswith("study: ")
    assert "wire" not in said  # which nobody has measured
    with StudyStore.open(tmp_path / "study") as store:
        kinds = {(b.direction, b.kind): (b.sent, b.received) for b in balance(store, 1) if b.kind != "telemetry"}
    assert kinds["up", "upload"][0] > 0
    assert {kind: sent for kind, (sent, _) in kinds.items()} == {
        kind: received for kind, (_, received) in kinds.items()
    }


async def test_devices_may_come_before_the_server(broker, tmp_path: Path, records) -> None:
    async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
        await one.says("broker")
        await asyncio.sleep(1)
        async with server(broker, tmp_path / "study") as serving:
            assert [await p.ended() for p in (serving, one, other)] == [0, 0, 0], serving.lines


async def test_too_few_devices_is_a_clear_end(broker, tmp_path: Path, records) -> None:
    async with device(broker, "pi-a", records[0]) as one:
        await one.says("broker")  # it may take longer to start than the server waits
        async with server(broker, tmp_path / "study", "--wait", "4") as serving:
            await serving.says("waiting: have 1, need 2")
            assert await serving.ended() == 1
            assert "only 1 of 2 devices joined in 4 s" in serving.lines[-1]
            assert await one.ended() == 1
            assert one.lines[-1].startswith("error: run shelf ended early") and "only 1 of 2" in one.lines[-1]


async def test_a_server_prints_its_result_for_machines(broker, tmp_path: Path, records) -> None:
    async with server(broker, tmp_path / "study", "--json") as serving:
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (serving, one, other)] == [0, 0, 0], serving.lines
    result = json.loads(serving.lines[-1])
    assert (result["rounds"], result["devices"]) == (3, 2) and result["payload_bytes"]["up"] > 0


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_told_to_stop_tells_its_devices(broker, tmp_path: Path, records, told) -> None:
    async with server(broker, tmp_path / "study", "--rounds", "5000") as serving:
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            await one.says("round 3: completed")
            serving.process.send_signal(told)
            assert await serving.ended() == 130, serving.lines
            where = f"what was recorded until then is in {tmp_path / 'study'}"
            assert serving.lines[-1] == f"interrupted; {where}; --resume goes on with it"
            assert not any("Traceback" in line for line in serving.lines)
            assert [await p.ended() for p in (one, other)] == [1, 1], one.lines
            assert "ended early" in one.lines[-1] and "the server was stopped" in one.lines[-1]
    with StudyStore.open(tmp_path / "study") as store:
        assert store.rows("SELECT completed, reason FROM runs") == [(0, "interrupted")]


async def test_a_device_that_is_told_to_stop_says_goodbye(broker, tmp_path: Path, records) -> None:
    async with server(broker, tmp_path / "study", "--rounds", "5000") as serving:
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]):
            await one.says("round 3: completed")
            one.process.send_signal(signal.SIGTERM)
            assert await one.ended() == 130 and one.lines[-1] == "interrupted"
            await serving.says("pi-a left: stopped")


async def test_a_machine_that_lost_power_is_back_in_seconds(broker, tmp_path: Path, records) -> None:
    """Its old process is frozen, its connection half-open: the broker would miss it after a minute and a half. Should
    it wake up, it learns that its name is another's."""
    async with server(broker, tmp_path / "study", "--rounds", "5000") as serving:
        async with device(broker, "pi-a", records[0]) as old, device(broker, "pi-b", records[1]):
            await old.says("round 3: completed")
            old.process.send_signal(signal.SIGSTOP)
            async with device(broker, "pi-a", records[0]) as new:
                await serving.says("pi-a was started anew")
                await new.says(": completed")
                old.process.send_signal(signal.SIGCONT)
                assert await old.ended() == 2 and "another process took over the name pi-a" in old.lines[-1]
                new.lines.clear()
                await new.says(": completed")  # and goes on unharmed


@pytest.mark.parametrize("has_folder", [False, True])
async def test_a_lone_device_that_is_killed_and_keeps_nothing_goes_on_with_a_new_model(
    broker, tmp_path: Path, records, has_folder: bool
) -> None:
    """A folder to keep its state in changes nothing where there is none of this run in it yet."""
    state = ("--state", str(tmp_path / "state")) if has_folder else ()
    more = ("--devices", "1", "--rounds", "12", "--set", "training.recon_epochs=60")
    async with server(broker, tmp_path / "study", *more) as serving:
        async with device(broker, "pi-a", records[0]) as first:
            await first.says("round 2: completed")
            first.process.kill()
            await first.ended()
        async with device(broker, "pi-a", records[0], *state) as second:
            assert [await p.ended() for p in (serving, second)] == [0, 0], (serving.lines, second.lines)
    with StudyStore.open(tmp_path / "study") as store:
        assert store.rows("SELECT count(*) FROM participants WHERE fate = 'accepted'") == [(12,)]
        ((told,),) = store.rows("SELECT detail FROM events WHERE detail LIKE '%started anew%'")
    assert told.endswith(": pi-a was started anew and kept nothing: it is asked again, and its model is a new one")


async def test_the_second_device_of_a_name_is_refused_and_the_first_unharmed(broker, tmp_path: Path, records) -> None:
    async with server(broker, tmp_path / "study") as serving, device(broker, "pi-a", records[0]) as first:
        await serving.says("have 1, need 2")
        async with device(broker, "pi-a", records[2]) as second:
            assert await second.ended() == 2
            assert second.lines[-1].startswith("error: ") and "pi-a" in second.lines[-1]
        async with device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (serving, first, other)] == [0, 0, 0], (serving.lines, first.lines)
    assert not any("lost" in line for line in first.lines)


async def test_retained_leftovers_of_an_older_run_change_nothing(broker, tmp_path: Path, records) -> None:
    old = RoundState(run="shelf.00000000", round=99, device=SERVER, seq=10**6, state="ended", reason="long ago")
    async with connector(endpoint(broker.url))(Settings("leftover")) as transport:
        await transport.publish(topics.round_state("shelf"), encode(old), retain=True)
        await transport.publish(topics.broadcast("shelf", 1, 0), b"rubbish", retain=True)
    async with server(broker, tmp_path / "study") as serving:
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (serving, one, other)] == [0, 0, 0], (serving.lines, one.lines)
    assert any("round 3: completed" in line for line in one.lines)


async def test_a_device_of_another_width_is_told_so(broker, tmp_path: Path, records) -> None:
    odd = tmp_path / "odd.npz"
    np.savez(odd, samples=np.zeros((60, 7)))
    async with server(broker, tmp_path / "study") as serving, device(broker, "pi-a", records[0]) as one:
        await serving.says("have 1, need 2")
        async with device(broker, "pi-odd", odd) as refused:
            assert await refused.ended(15) == 2
            assert "7 features" in refused.lines[-1] and "5" in refused.lines[-1]
        async with device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (serving, one, other)] == [0, 0, 0]


async def test_devices_of_another_width_than_was_declared_are_told_so_although_they_come_first(
    broker, tmp_path: Path, records
) -> None:
    odd = tmp_path / "odd.npz"
    np.savez(odd, samples=np.zeros((60, 7)))
    async with server(broker, tmp_path / "study", "--features", "5") as serving:
        async with device(broker, "pi-odd", odd) as refused:
            assert await refused.ended() == 2
        why = (
            "its records have 7 features, those of this run 5 (as its server was told): preprocess them alike, or start"
        )
        assert f"device pi-odd: the server refuses it (unfit): {why}" in refused.lines[-1]
        await serving.says(f"pi-odd is refused: {why}")
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (serving, one, other)] == [0, 0, 0], serving.lines


async def test_a_second_server_of_the_same_run_ends_and_the_first_is_unharmed(broker, tmp_path: Path, records) -> None:
    async with server(broker, tmp_path / "study", "--rounds", "30") as first:
        await first.says("have 0, need 2")
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            async with server(broker, tmp_path / "second") as second:
                assert await second.ended() == 2
                assert second.lines[-1].startswith(
                    f"error: run 'shelf': another server coordinates it on {broker.url} and "
                )
                assert second.lines[-1].endswith("; give this one another --run, or stop the other one first")
            assert [await p.ended() for p in (first, one, other)] == [0, 0, 0], first.lines
    assert not (tmp_path / "second").exists() and not any("next try" in line for line in first.lines)


async def test_what_a_killed_server_left_on_the_broker_stops_no_other_run(broker, tmp_path: Path, records) -> None:
    async with server(broker, tmp_path / "first") as first:
        await first.says("have 0, need 2")
        first.process.kill()
        await first.ended()
    async with server(broker, tmp_path / "second") as second:
        async with device(broker, "pi-a", records[0]) as one, device(broker, "pi-b", records[1]) as other:
            assert [await p.ended() for p in (second, one, other)] == [0, 0, 0], second.lines


async def test_a_broker_restart_in_the_middle_of_a_run(broker, tmp_path: Path, records) -> None:
    """Everybody reconnects, the run completes, no upload counts twice, and the models are those of a quiet run."""
    models = []
    for name in ("quiet", "restarted"):
        folder, model = tmp_path / name, tmp_path / f"{name}.npz"
        more = ("--rounds", "40", "--set", "training.recon_epochs=20")
        async with server(broker, folder, *more) as serving:
            one = device(broker, "pi-a", records[0], "--model", str(model))
            async with one as first, device(broker, "pi-b", records[1]) as other:
                await serving.says("round  5 of 40")
                if name == "restarted":
                    await broker.restart()
                codes = [await p.ended(120) for p in (serving, first, other)]
                assert codes == [0, 0, 0], (serving.lines[-5:], first.lines[-5:])
        with StudyStore.open(folder) as store:
            accepted = store.rows("SELECT count(*) FROM participants WHERE fate = 'accepted'")
            payload = store.rows("SELECT sum(payload_bytes) FROM transfers WHERE side='server' AND kind='upload'")
        assert accepted == [(80,)]
        assert payload == [(2 * 40 * 30 * 4 * 4,)]  # devices, rounds, codes, latent width, FP32
        models.append(np.load(model)["parameters"])
    np.testing.assert_array_equal(models[0], models[1])

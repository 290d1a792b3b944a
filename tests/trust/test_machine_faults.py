"""What machines do to a run: clocks that jump, disks that are full or for reading only, connections that are half open.
Each has one outcome that is told."""

import ast
import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brokers import RunningBroker, open_broker
from device.in_memory import HYPER, PLAN, Federation
from end_to_end_tools import HANGS_S

from edge_client.__main__ import main as device_command
from edge_client.checkpoint import Checkpoint, load
from edge_client.data.records import Records
from edge_client.data.scaler import Scaler
from edge_client.errors import ConfigError, ConnectionLost, EnvironmentFault
from edge_client.kept_state import Origin, kept_state, origin
from edge_client.model.trainer import ModelState
from edge_client.protocol.messages import SERVER, Standing, Welcome
from edge_client.transport.base import Settings, Will
from edge_client.transport.endpoint import Endpoint, endpoint
from edge_client.transport.mqtt import _certificate, connector

ROOT = Path(__file__).parents[2]
OF_DAY = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"),
          ("date", "today")}  # fmt: skip

# ---- clocks --------------------------------------------------------------------------------------------------------


def test_no_part_of_a_run_asks_for_the_time_of_day() -> None:
    """So it may be set back or forward at any moment. A folder's name may hold a date."""
    found = set()
    for floor in ("edge_client", "broker_server", "sim"):
        for path in (ROOT / floor).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if named and (node.value.id, node.attr) in OF_DAY:
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == {"sim/studies.py"}


@pytest.mark.parametrize("moment", [0.005, 0.02, 0.05, 0.1])
async def test_a_process_that_slept_for_hours_ends_its_run_as_it_would_have(moment: float) -> None:
    """All timers are due when a frozen machine wakes up. Whoever was outstanding is late at worst, and nobody hangs."""
    federation = Federation(replace(PLAN, rounds=4))

    async def sleep_for_hours() -> None:
        await asyncio.sleep(moment)
        federation.clock._now += 10_000.0

    outcome, states = await federation.run(also=sleep_for_hours())
    assert outcome.completed or outcome.reason
    assert states.keys() == set("abcd")
    told = federation.told.records
    assert [record.round for record in told] == list(range(1, outcome.rounds + 1))
    for record in told:
        fates = [*record.accepted, *record.late, *record.rejected, *record.missing]
        assert sorted(fates) == list("abcd")


@pytest.mark.parametrize("why", ["certificate is not yet valid", "certificate has expired"])
def test_a_certificate_out_of_its_time_points_at_the_clock(why: str) -> None:
    """A board without a battery starts in the year 1970."""
    told = _certificate(Endpoint("shelf", 8883, tls=True), f"certificate verify failed: {why} (_ssl.c:1000)")
    assert why in told and "clock of this machine" in told and "--ca-file" not in told


# ---- disks ---------------------------------------------------------------------------------------------------------


def checkpoint(run: str = "shelf.5f0c21aa", device: str = "pi-1", round: int = 3) -> Checkpoint:
    vector = np.arange(4, dtype=np.float32)
    return Checkpoint(run, device, round, round, 9, ModelState(vector, vector, vector))


def welcome(run: str) -> Welcome:
    return Welcome(run=run, round=3, device=SERVER, seq=1, instance="00000000", method="gca", seed=1, rounds=9,
                   hyper=HYPER, standing=Standing(0, "nothing"))  # fmt: skip


ROWS = np.arange(30, dtype=np.float32).reshape(10, 3)
MADE_FROM = origin(Records(ROWS))


def opened(folder: Path, device: str = "pi-1", made_from: Origin = MADE_FROM, said: list[str] | None = None):
    return kept_state(folder, "shelf", device, made_from, (said if said is not None else []).append)


@pytest.mark.parametrize("life", ["shelf.5f0c21aa", "shelf.5f0c21aa.7"])
def test_a_state_goes_on_in_whatever_life_of_its_server(tmp_path: Path, life: str) -> None:
    first = opened(tmp_path / "state")
    assert first.kept is None and first.unsure_of is None and first.resume(welcome(life)) is None
    first.save(checkpoint())
    first.close()
    for half in (".shelf.pi-1.npz.4711", ".shelf.pi-1.secret.4711"):
        (tmp_path / "state" / half).write_bytes(b"half of a file, whose writer was killed")
    again = opened(tmp_path / "state")
    assert again.secret == first.secret and again.unsure_of == 4
    kept = again.resume(welcome(life))
    assert kept is not None and kept.round == 3 and kept.state.parameters.tolist() == [0, 1, 2, 3]
    assert again.why_anew() == ""
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}
    assert modes["shelf.pi-1.npz"] == modes["shelf.pi-1.secret"] == 0o600 and len(modes) == 3
    again.drop()
    assert list((tmp_path / "state").iterdir()) == []


def test_a_state_of_another_run_is_set_aside_and_its_secret_serves_no_second_one(tmp_path: Path) -> None:
    """A server was started anew under the old name. The board does not stay down for it, and nothing is lost: what was
    kept can be put back for the old run."""
    opened(tmp_path).close()
    said: list[str] = []
    second = opened(tmp_path, said=said)
    second.save(checkpoint())
    second.close()
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for number in (1, 2):
        third = opened(tmp_path, said=said)
        assert third.kept is not None and third.resume(welcome("shelf.00000000")) is None and third.kept is None
        said_of_it = said.pop()
        assert said_of_it == third.why_anew() and said_of_it.startswith("shelf.pi-1.npz: is of shelf.5f0c21aa, ")
        assert "the server runs shelf.00000000, another run of that name" in said_of_it
        assert said_of_it.endswith(f"set aside as shelf.pi-1.npz~{number}, and this device begins anew")
        assert not third.path.exists()
        third.save(checkpoint("shelf.00000000", round=1))
        third.close()
        fourth = opened(tmp_path, said=said)
        assert fourth.kept is not None and fourth.resume(welcome("shelf.00000000")) is fourth.kept and said == []
        fourth.drop()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            f"shelf.pi-1.{kind}~{n}" for kind in ("npz", "secret") for n in range(1, number + 1)
        )
        for kind in ("npz", "secret"):  # put back as the documentation says
            aside = tmp_path / f"shelf.pi-1.{kind}~{number}"
            assert stat.S_IMODE(aside.stat().st_mode) == 0o600
            shutil.copy(aside, tmp_path / f"shelf.pi-1.{kind}")
        back = opened(tmp_path, said=said)
        assert back.secret == second.secret and back.resume(welcome("shelf.5f0c21aa")) is not None
        assert {name: (tmp_path / name).read_bytes() for name in old} == old
        back.close()
    assert not any(second.secret.hex() in repr(one) or repr(second.secret) in repr(one) for one in (second, back))


def test_of_states_set_aside_the_last_few_are_kept_and_the_highest_number_is_the_latest(tmp_path: Path) -> None:
    """Ten servers, each begun anew under the old name, on a board of whose twin beside it nothing is deleted."""
    twin = [tmp_path / f"shelf.pi-10.{kind}~1" for kind in ("npz", "secret")]
    for file in twin:
        file.write_bytes(b"another device's")
    for number in range(1, 11):
        one = opened(tmp_path, device="pi-1")
        one.save(checkpoint(round=number))
        one.close()
        one = opened(tmp_path, device="pi-1")
        assert one.resume(welcome(f"shelf.{number:08x}")) is None
        assert one.why_anew().endswith(f"set aside as shelf.pi-1.npz~{number}, and this device begins anew")
        one.close()
    left = {path.name for path in tmp_path.glob("shelf.pi-1.*~*")}
    assert left == {f"shelf.pi-1.{kind}~{n}" for kind in ("npz", "secret") for n in (8, 9, 10)}
    assert [load(tmp_path / f"shelf.pi-1.npz~{n}").round for n in (8, 9, 10)] == [8, 9, 10]
    assert all(file.exists() for file in twin)


SCALERS = [Scaler(("a", "b", "c"), (0.0, 0.0, mean), (1.0, 1.0, 1.0)) for mean in (0.0, 1.0)]


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (origin(Records(ROWS + 1), SCALERS[0]), "made from other records, 10 of them where there are 10 now"),
        (origin(Records(ROWS[:9]), SCALERS[0]), "made from other records, 10 of them where there are 9 now"),
        (origin(Records(ROWS.reshape(5, 6)), SCALERS[0]), "made from other records, 10 of them where there are 5 now"),
        (origin(Records(ROWS - 1), SCALERS[1]), "standardised otherwise, with another --scaler or with none"),
        (origin(Records(ROWS - 1)), "standardised otherwise, with another --scaler or with none"),
    ],
)
def test_a_state_of_other_records_is_set_aside_and_the_noise_on_their_codes_is_new(
    tmp_path: Path, now: Origin, told: str
) -> None:
    first = opened(tmp_path, made_from=origin(Records(ROWS), SCALERS[0]))
    first.save(checkpoint())
    first.close()
    said: list[str] = []
    second = opened(tmp_path, made_from=now, said=said)
    assert second.kept is None and second.unsure_of is None and second.resume(welcome("shelf.5f0c21aa")) is None
    assert told in second.why_anew() and said == [second.why_anew()] and "begins anew" in said[0]
    assert second.secret != first.secret and (tmp_path / "shelf.pi-1.npz~1").exists()
    second.save(checkpoint())
    second.close()
    third = opened(tmp_path, made_from=now, said=said)
    assert third.kept is not None and third.secret == second.secret and third.why_anew() == "" and len(said) == 1


def test_records_that_are_the_same_go_on_whatever_judges_them_and_however_they_were_standardised(
    tmp_path: Path,
) -> None:
    first = opened(tmp_path, made_from=origin(Records(ROWS), SCALERS[0]))
    first.save(checkpoint())
    first.close()
    judged = Records(ROWS.copy(), ROWS[:2], np.array([0, 1], np.int8))
    assert opened(tmp_path, made_from=origin(judged, SCALERS[1])).kept is not None


@pytest.mark.parametrize("harm", ["state", "another's", "secret gone", "secret cut"])
def test_what_is_damaged_says_what_to_delete(tmp_path: Path, harm: str) -> None:
    kept = opened(tmp_path)
    kept.save(checkpoint(device="pi-2" if harm == "another's" else "pi-1"))
    kept.close()
    (secret,) = tmp_path.glob("*.secret")
    match harm:
        case "state":
            kept.path.write_bytes(kept.path.read_bytes()[:-40])
        case "secret gone":
            secret.unlink()
        case "secret cut":
            secret.write_bytes(b"x" * 31)
    with pytest.raises(EnvironmentFault, match="delete"):
        opened(tmp_path)


def test_two_processes_of_one_device_do_not_share_a_state(tmp_path: Path) -> None:
    """The second would draw another secret in place of the first one's, and sweep up what that is writing."""
    first = opened(tmp_path)
    half = tmp_path / ".shelf.pi-1.npz.4711"
    half.write_bytes(b"being written")
    (secret,) = tmp_path.glob("*.secret")
    before = secret.read_bytes()
    with pytest.raises(EnvironmentFault, match="another process of pi-1 uses it"):
        opened(tmp_path)
    assert first.secret in before == secret.read_bytes() and half.exists()
    assert opened(tmp_path, "pi-2").kept is None  # others may keep theirs in the same folder
    first.drop()
    opened(tmp_path).drop()


def test_a_state_that_cannot_be_deleted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = opened(tmp_path)
    kept.save(checkpoint())

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(EnvironmentFault, match="Read-only file system; the run is complete"):
        kept.drop()


async def test_a_state_of_records_of_another_width_is_refused_at_both_ends() -> None:
    federation = Federation()
    other = checkpoint(f"{PLAN.name}", "d", 0)
    real = federation.device
    hurt = replace(federation.device("d"), resume=lambda welcome: other)
    federation.device = lambda name, **more: hurt if name == "d" else real(name, **more)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"device d: .* is of a model of 4 parameters, where records of \d+ features"):
        await federation.run()
    assert any("d failed: device d: the state that it kept" in note for note in federation.told.notes)


def test_a_folder_for_no_state_is_told_before_anything_is_connected(tmp_path: Path, capsys) -> None:
    records = tmp_path / "records.npz"
    np.savez(records, samples=np.zeros((30, 3)))
    words = ["--broker", "mqtt://127.0.0.1:1", "--run", "shelf", "--id", "pi-1", "--data", str(records), "--state"]
    for folder, told in ((records / "state", "Not a directory"), (Path("/proc/state"), "")):
        assert device_command([*words, str(folder)]) == 3
        said = capsys.readouterr().err
        assert told in said and "give a folder that can be written as --state" in said and len(said.splitlines()) == 1


async def test_a_device_whose_disk_fills_up_says_so_at_both_ends() -> None:
    federation = Federation()

    def full(kept: Checkpoint) -> None:
        if kept.round == 2:
            raise EnvironmentFault("pi-d.npz: No space left on device; the checkpoint could not be written")

    hurt = replace(federation.device("d"), keep=full)
    real = federation.device
    federation.device = lambda name, **more: hurt if name == "d" else real(name, **more)  # type: ignore[method-assign]
    with pytest.raises(Exception, match=r"device d failed in checkpoint: EnvironmentFault: .*No space left on device"):
        await federation.run()
    assert any("d failed: device d failed in checkpoint" in note for note in federation.told.notes)


# ---- connections ---------------------------------------------------------------------------------------------------


class Relay:
    """Forwards to a broker until it is told to swallow all that comes; it keeps its connections open."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker, self.swallowing = broker, False

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection(self._broker.host, self._broker.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                if not self.swallowing:
                    sink.write(data)

        try:
            await asyncio.gather(pump(reader, down), pump(up, writer), return_exceptions=True)
        finally:
            down.close()
            writer.close()


@asynccontextmanager
async def relayed(broker: RunningBroker) -> AsyncIterator[tuple[Relay, str]]:
    relay = Relay(broker)
    listening = await asyncio.start_server(relay.handle, "127.0.0.1", 0)
    try:
        yield relay, f"mqtt://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def test_a_connection_that_is_half_open_is_noticed_by_both_ends() -> None:
    """Nothing is refused or reset, and nothing comes through: the keepalive tells, at the client and at the broker,
    whose last will for it goes out."""
    async with open_broker("embedded") as broker, relayed(broker) as (relay, url):
        async with connector(endpoint(broker.url))(Settings("eye")) as eye:
            await eye.subscribe("gone")
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(HANGS_S):
                    settings = Settings("device", Will("gone", b"device"), keepalive=1)
                    async with connector(endpoint(url))(settings) as device:
                        await device.subscribe("a")
                        relay.swallowing = True
                        await device.publish("up", b"x")
            async with asyncio.timeout(HANGS_S):
                assert (await anext(eye.messages())).payload == b"device"

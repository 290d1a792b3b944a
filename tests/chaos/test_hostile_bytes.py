"""A short campaign of `fuzz/`: mutated messages, frames, checkpoints and CSV files raise nothing but typed errors."""

import io
import random
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from broker_server.rounds.coordinator import Coordinator
from broker_server.rounds.gate import Gate, Rumour
from broker_server.rounds.members import PROCESSES, Members
from broker_server.study.results import last_run
from broker_server.study.store import StudyStore
from edge_client.checkpoint import Checkpoint, load, save
from edge_client.data.csv_records import Columns, load_csv
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.model.trainer import ModelState
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import SERVER, Presence, Probe, RoundState
from edge_client.protocol.topics import Address
from fuzz.decoder import Targets, campaign
from fuzz.federation import Federation
from fuzz.mutate import mutated


def test_twenty_thousand_hostile_inputs_raise_nothing_untyped() -> None:
    outcomes, grown = campaign(20_000, seed=1, say=lambda text: None)
    for reader in ("message", "body", "file"):
        assert outcomes[f"{reader} refused"] > 5 * outcomes[f"{reader} read"] > 0, outcomes
    assert outcomes["frames read"] > 0 and outcomes["frames refused"] > 0
    assert outcomes["rounds"] > 100  # the run went on all the while
    assert grown < 20


def test_what_servers_say_of_each_other_is_among_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: Counter[str] = Counter()
    read = Gate._of_a_server

    def overheard(gate: Gate, address: Address, payload: bytes, retained: bool) -> Rumour | None:
        found = read(gate, address, payload, retained)
        heard[f"{address.kind.__name__} {'used' if found else 'not used'}"] += 1
        return found

    monkeypatch.setattr(Gate, "_of_a_server", overheard)
    outcomes, _ = campaign(5_000, seed=2, say=lambda text: None)
    assert len(heard) == 4 and min(heard.values()) > 5, heard
    assert outcomes["runs ended"] > 0


def test_bytes_as_they_are_reach_those_readers_too(tmp_path: Path) -> None:
    """What libFuzzer hands over: the first byte names the reader."""
    targets = Targets(tmp_path)
    further = RoundState(run="fuzz.00000001", round=9, device=SERVER, seq=0, state="open")
    probe = Probe(run="fuzz.00000001", device=SERVER, seq=0, instance="00000001")
    targets.one_input(b"\x08" + encode(probe))
    assert targets.federation.coordinator.ledger.drain()[SERVER][0].messages == 1
    targets.one_input(b"\x07" + encode(further))
    assert targets.outcomes["runs ended"] == 1
    targets.close()


def test_what_the_end_of_a_run_gives_is_in_its_study(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "study")
    federation.close()
    with StudyStore.open(tmp_path / "study") as store:
        said = store.rows("SELECT detail FROM events WHERE run = ? AND kind = 'note'", last_run(store).run)
    assert any("the campaign is over" in text for (text,) in said)


def test_a_campaign_repeats_with_its_seed() -> None:
    said: list[list[str]] = [[], []]
    for lines in said:
        campaign(500, seed=3, say=lines.append)
    assert said[0][-1] == said[1][-1]
    chance = random.Random(5), random.Random(5)
    assert mutated(b"abc" * 9, chance[0]) == mutated(b"abc" * 9, chance[1])


def test_what_is_raised_says_how_to_have_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Coordinator.take

    def fragile(coordinator: Coordinator, topic: str, payload: bytes, now: float) -> object:
        if b"\xc1" in payload:
            raise IndexError("not foreseen")
        return take(coordinator, topic, payload, now)

    monkeypatch.setattr(Coordinator, "take", fragile)
    said: list[str] = []
    with pytest.raises(IndexError):
        campaign(20_000, seed=1, say=said.append)
    assert "--seed 1 --count" in said[0]


def test_a_device_that_invents_processes_fills_no_memory() -> None:
    members = Members()
    for number in range(10_000):
        members.see(Presence(run="fuzz", device="a", seq=number, state="online", instance=f"{number:08x}"))
    assert sum(len(processes) for processes in members._online.values()) == PROCESSES


def test_a_checkpoint_of_a_zip_version_to_come_or_with_other_members_is_refused(tmp_path: Path) -> None:
    path, vector = tmp_path / "device.npz", np.ones(3, np.float32)
    save(path, Checkpoint("fuzz.5f0c21aa", "a", 3, 3, 9, ModelState(vector, vector, vector)))
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    path.write_bytes(whole[: directory + 6] + b"\xc8" + whole[directory + 7 :])  # the version needed to read it
    with pytest.raises(EnvironmentFault, match="no whole checkpoint"):
        load(path)
    with zipfile.ZipFile(io.BytesIO(whole)) as good, zipfile.ZipFile(path, "w") as bad:
        for member in good.namelist():
            bad.writestr(member, b"text" if member == "counts.npy" else good.read(member))
    with pytest.raises(EnvironmentFault, match="no whole checkpoint"):
        load(path)


def test_a_cell_that_ends_in_a_control_character_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("x,y\n" + "\n".join(f"{n},{n * n}" for n in range(12)) + "\n14\x1d,1\n")
    with pytest.raises(ConfigError, match="line 14: column 'x'"):
        load_csv(path, Columns())

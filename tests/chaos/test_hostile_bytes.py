"""A short campaign of `fuzz/`: mutated messages, frames, checkpoints and CSV files raise nothing but typed errors."""

import random

import pytest

from broker_server.coordinator import Coordinator
from broker_server.members import PROCESSES, Members
from edge_client.protocol.messages import Presence
from fuzz.decoder import campaign
from fuzz.mutate import mutated


def test_twenty_thousand_hostile_inputs_raise_nothing_untyped() -> None:
    outcomes, grown = campaign(20_000, seed=1, say=lambda text: None)
    for reader in ("message", "body", "file"):
        assert outcomes[f"{reader} refused"] > 5 * outcomes[f"{reader} read"] > 0, outcomes
    assert outcomes["frames read"] > 0 and outcomes["frames refused"] > 0
    assert outcomes["rounds"] > 100  # the run went on all the while
    assert grown < 20


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

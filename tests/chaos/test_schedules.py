"""Runs under seeded faults, in virtual time; `python -m benchmarks.chaos --seed N` plays one of them again, and says
what happened."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from chaos.faults import GENTLE, HARSH, Fault, Setting, gentle, schedule, setting
from chaos.run import Ended, judged, play, told, undisturbed

from broker_server.rounds.herald import Herald
from broker_server.rounds.ledger import Ledger
from edge_client.conversation.session import Session

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_ends_with_every_upload_counted_once(seed: int) -> None:
    ended = judged(seed)
    assert not ended.flaws, told(seed, ended)


def test_a_schedule_depends_on_its_seed_alone() -> None:
    random.seed(1)
    first = [schedule(seed) for seed in SEEDS]
    random.seed(2)
    assert [schedule(seed) for seed in reversed(SEEDS)] == first[::-1]
    assert len(set(first)) == len(SEEDS)


def test_a_run_repeats_to_the_microsecond() -> None:
    seed = next(seed for seed in SEEDS if any(fault.kind == "power" for fault in schedule(seed)))
    assert play(setting(seed), schedule(seed)) == play(setting(seed), schedule(seed))


def test_the_schedules_hold_every_kind_of_fault_and_every_kind_of_run() -> None:
    kinds = Counter(fault.kind for seed in SEEDS for fault in schedule(seed))
    assert kinds.keys() == {*GENTLE, *HARSH}
    assert 20 <= sum(gentle(schedule(seed), setting(seed)) for seed in SEEDS) <= 50
    assert len({(setting(s).method, setting(s).participation, setting(s).quorum) for s in SEEDS}) == 8


@pytest.mark.parametrize("seed", range(8))
def test_an_undisturbed_run_loses_nothing(seed: int) -> None:
    of, ended = setting(seed), undisturbed(setting(seed))
    assert ended.terminal == "completed" and ended.state is not None and not ended.flaws
    assert [len(accepted) for accepted in ended.accepted] == [of.devices * of.participation] * of.rounds


# ---- these tests can fail ------------------------------------------------------------------------------------------


def flaws(seeds: range) -> list[str]:
    return [flaw for seed in seeds for flaw in judged(seed).flaws]


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Breaks the program, and keeps no result of a broken one."""
    undisturbed.cache_clear()
    yield monkeypatch
    undisturbed.cache_clear()


def test_devices_that_never_ask_are_found_out(sabotage: pytest.MonkeyPatch) -> None:
    sabotage.setattr(Session, "_must_ask", lambda *told: False)
    assert any("no round was missed" in flaw for flaw in flaws(range(40)))


def test_a_server_that_repeats_no_broadcast_is_found_out(sabotage: pytest.MonkeyPatch) -> None:
    sabotage.setattr(Herald, "catch_up", lambda *told: [])
    assert any("no round was missed" in flaw for flaw in flaws(range(24)))


def test_a_ledger_that_counts_twice_is_found_out(sabotage: pytest.MonkeyPatch) -> None:
    once = Ledger.received

    def twice(ledger: Ledger, *told: object) -> None:
        once(ledger, *told)  # type: ignore[arg-type]
        once(ledger, *told)  # type: ignore[arg-type]

    sabotage.setattr(Ledger, "received", twice)
    assert any("messages counted" in flaw for flaw in flaws(range(4)))


def test_a_device_that_comes_back_after_the_end_ends_too() -> None:
    """It was cut off in the middle of its upload, and the server has gone when it is back."""
    of = next(setting(seed) for seed in SEEDS if setting(seed).participation == 1.0 and setting(seed).quorum == 1)
    ended: Ended = play(of, (Fault("partition", 2.3, "a", 250.0),))
    assert ended.terminal == "completed" and not ended.flaws
    assert all("a" not in accepted for accepted in ended.accepted[1:])


@pytest.mark.parametrize("method", ["gca", "fedavg"])
def test_a_device_that_is_dead_for_a_while_at_whatever_moment_has_the_model_that_it_would_have(method: str) -> None:
    """Half of the devices take part in a round. With FedAvg all hear each aggregate, the last one too."""
    of = Setting(method, 4, 0.5, 1)  # type: ignore[arg-type]
    model = undisturbed(of)
    for tenth in range(25, int(model.took_s * 10) - 4, 3):
        for seconds in (
            one for one in (0.4, 3.1) if tenth / 10 + one < model.took_s - 1.5
        ):  # while the server is there
            ended = play(of, (Fault("kill with state", tenth / 10, "a", seconds),))
            assert (ended.terminal, ended.accepted, ended.flaws) == ("completed", model.accepted, ())
            assert ended.state == model.state, f"a was dead from {tenth / 10} s on, for {seconds} s"


@pytest.mark.parametrize(("device", "at"), [("b", 3.1), ("d", 5.9), ("a", 5.9)])
def test_a_device_that_dies_twice_over_a_round_that_it_delivered_for_learns_from_it_all_the_same(
    device: str, at: float
) -> None:
    """Its upload is in as it dies, and the next round over as it dies again, so it keeps nothing of its own in between.
    The model of the round to come it can fetch, but Adam's moments it has only from its own work. a is still at that
    as the run ends."""
    of = Setting("fedavg", 4, 0.5, 1)
    model = undisturbed(of)
    faults = [Fault("kill with state", at, device, 0.7), Fault("kill with state", at + 2.95, device, 0.8)]
    ended = play(of, tuple(faults))
    assert (ended.terminal, ended.accepted, ended.flaws) == ("completed", model.accepted, ())
    assert ended.state == model.state


@pytest.mark.parametrize("seed", [1214, 1361])
def test_a_device_that_dies_as_the_run_ends_has_kept_the_model_of_its_last_round(seed: int) -> None:
    """One is killed at its goodbye, the other started again as the server leaves."""
    ended = judged(seed)
    assert not ended.flaws, told(seed, ended)
    assert ended.state == undisturbed(setting(seed)).state

"""Who is drawn when devices are away, and what of their reports is believed."""

from typing import Any

import pytest
from server.driver import NAME, RUN, Driver, plan, told

from broker_server.rounds.actions import Observe
from edge_client.cohort import takes_part
from edge_client.protocol import topics
from edge_client.protocol.messages import MAX_EVALUATIONS, Evaluation, Telemetry, Welcome


def asked(run: Driver) -> list[str]:
    return sorted(run.coordinator.collection.instances)


def lose_b_for_two_openings() -> Driver:
    """b is cut off in round 1 and not back when rounds 2 and 3 open."""
    run = Driver(plan(rounds=9, deadline_s=10.0))
    run.start("a", "b")
    run.presence("b", 2.0, state="lost")
    for round in (1, 2):
        run.upload("a", round, 10.0 * round)
        run.tick(10.0 * round + 10)
        run.aggregated(10.0 * round + 10)
    return run


def test_a_device_that_is_away_for_more_than_a_round_is_not_drawn() -> None:
    run = Driver(plan(rounds=9, deadline_s=10.0))
    run.start("a", "b")
    run.presence("b", 2.0, state="lost")
    run.upload("a", 1, 3.0)
    run.tick(11.0)
    run.aggregated(11.0)
    assert asked(run) == ["a", "b"]  # it may be back any moment
    run.upload("a", 2, 12.0)
    run.tick(21.0)
    run.aggregated(21.0)
    assert asked(run) == ["a"]
    run.play(3, 22.0, "a")  # and nobody has waited for it
    assert run.coordinator.collection.round == 4


def test_a_device_that_comes_back_in_an_open_round_is_asked_after_all() -> None:
    """It finds itself in the cohort and will train; were its upload not expected, it would be for nothing."""
    run = lose_b_for_two_openings()
    assert asked(run) == ["a"]
    run.arrive("b", 31.0)
    assert asked(run) == ["a", "b"]
    run.play(3, 32.0, "b", "a")
    assert told(run.log, Welcome)[-1].round == 2  # the open round is not behind it
    assert asked(run) == ["a", "b"] and run.coordinator.collection.round == 4


def test_a_device_that_starts_anew_in_an_open_round_is_not() -> None:
    run = lose_b_for_two_openings()
    run.arrive("b", 31.0, instance="11111111")
    assert asked(run) == ["a"]


def test_a_device_that_was_not_drawn_is_not_asked_when_it_is_back() -> None:
    """Two of four are drawn, one of the three that are there while d is away; d is asked if its draw is below theirs,
    which over many seeds happens sometimes."""
    back = 0
    for seed in range(30):
        run = Driver(plan(devices=4, minimum_devices=4, participation=0.5, rounds=9, deadline_s=10.0, seed=seed))
        run.start("a", "b", "c", "d")
        run.presence("d", 1.0, state="lost")
        for round in (1, 2):
            opened = run.coordinator.collection.opened_s
            for device in set(asked(run)) - {"d"}:
                run.upload(device, round, opened)
            run.tick(opened + 10.0)
            run.aggregated(opened + 10.0)
        collection = run.coordinator.collection
        assert len(asked(run)) == 1 and "d" not in asked(run)
        run.presence("d", collection.opened_s + 1)
        drawn = takes_part(collection.cohort, seed, 3, "d")
        assert ("d" in asked(run)) == drawn
        back += drawn
    assert 0 < back < 30


def test_a_broker_that_forgot_everyone_leaves_nobody_out() -> None:
    """Nobody's presence is known for two openings, but uploads show who is there."""
    run = Driver(plan(rounds=9))
    run.start("a", "b")
    for round in range(1, 5):
        run.announce(round + 1.0)
        run.play(round, round + 1.0, "a", "b")
        assert asked(run) == ["a", "b"]


def evaluations(*epochs: int) -> tuple[Evaluation, ...]:
    figures = {"loss": 0.0, "threshold": 0.0, "accuracy": 0.5, "auroc": 0.5, "average_precision": 0.5}
    return tuple(Evaluation(phase="recon", epoch=epoch, **figures) for epoch in epochs)


def report(run: Driver, device: str, round: int, judged: tuple[Evaluation, ...] = (), seq: int | None = None) -> bool:
    """Report a round; return whether it is believed."""
    head: dict[str, Any] = run.head(device, round, NAME)
    message = Telemetry(**head | ({} if seq is None else {"seq": seq}), outcome="completed", spent_s={}, tallies=(),
                        evaluations=judged, ignored={}, state_sha256="")  # fmt: skip
    return any(isinstance(action, Observe) for action in run.send(topics.telemetry(RUN, device), message, 5.0))


def test_only_devices_of_the_run_report_and_only_of_rounds_that_there_are() -> None:
    run = Driver()
    run.start("a", "b")
    run.presence("seen", 1.0)
    assert not report(run, "stranger", 1) and not report(run, "seen", 1)
    assert not report(run, "a", 2)
    assert report(run, "a", 1)
    assert run.coordinator.counts == {"report_foreign": 3}


def test_a_device_that_has_left_still_reports_its_last_round() -> None:
    run = Driver()
    run.start("a", "b")
    run.presence("a", 2.0, state="left")
    assert report(run, "a", 1)


def test_a_report_counts_once() -> None:
    run = Driver()
    run.start("a", "b")
    assert report(run, "a", 1, evaluations(1, 2), seq=500)
    assert not report(run, "a", 1, evaluations(1, 2), seq=500)  # the same message again
    assert not report(run, "a", 1, evaluations(2, 3), seq=501)  # another that says the same
    assert not report(run, "a", 1, evaluations(7, 7), seq=502)
    assert report(run, "a", 1, evaluations(3, 4), seq=503)  # the rest of it
    assert report(run, "a", 1, seq=504)  # what was left to say at the end
    assert run.coordinator.counts == {"report_duplicate": 3}
    run.play(1, 6.0, "a", "b")
    assert report(run, "a", 2, evaluations(1), seq=505)
    assert not report(run, "a", 1, evaluations(5), seq=506)  # a round that is over for it
    assert run.coordinator.counts == {"report_stale": 1}


def test_a_device_that_starts_anew_numbers_from_the_start() -> None:
    run = Driver()
    run.start("a", "b")
    assert report(run, "a", 1, evaluations(1), seq=500)
    run.presence("a", 2.0, state="lost")
    run.arrive("a", 3.0, instance="11111111")
    assert not report(run, "a", 1, evaluations(1), seq=3)
    assert report(run, "a", 1, evaluations(2), seq=4)


@pytest.mark.parametrize("each", [0, 400])
def test_what_a_device_reports_of_a_round_is_bounded(each: int) -> None:
    run = Driver()
    run.start("a", "b")
    believed = [report(run, "a", 1, evaluations(*range(n * each, (n + 1) * each))) for n in range(80)]
    assert believed.count(True) == (MAX_EVALUATIONS // each if each else 64)
    assert not any(believed[believed.index(False) :])

"""How wide a run's records are, and what those hear whose records are not."""

from dataclasses import replace
from typing import Any

import pytest
from server.driver import SAMPLES, WIDTH, Driver, Finish, Reject, RoundState, Welcome, notes, only, plan, told

from broker_server.rounds.actions import Opened
from broker_server.rounds.members import Member
from broker_server.study.start import Start
from edge_client.protocol.messages import Join


def width_of(run: Driver) -> int | None:
    return run.coordinator.members.input_dim


def test_a_wrong_device_that_comes_first_shuts_nobody_out() -> None:
    """7 of one device against 5 of two: of three expected, two are more than half."""
    run = Driver(plan(devices=3, minimum_devices=3))
    assert len(told(run.arrive("wrong", 1.0, width=7), Welcome)) == 1  # who knows
    differ = run.arrive("a", 2.0)
    assert "records differ: those of a have 5 features, of wrong 7; most devices decide, or start the server with " \
        "--features N" in notes(differ)  # fmt: skip
    settled = run.arrive("b", 3.0)
    (reject,) = told(settled, Reject)
    why = (
        "its records have 7 features, those of this run 5 (as of a): preprocess them alike, or start the server with "
        "--features 7"
    )
    assert (reject.device, reject.reason, reject.instance, reject.detail) == ("server", "unfit", "00000000", why)
    assert f"wrong is refused: {why}" in notes(settled)
    assert sorted(run.coordinator.members.joined) == ["a", "b"] and width_of(run) == 5
    assert only(run.arrive("wrong", 9.0, instance="11111111"), Opened) == Opened(1, 3)  # mended, and back


def test_the_last_expected_device_settles_it_and_of_equals_the_first_is_right() -> None:
    run = Driver()
    run.arrive("a", 1.0)
    refused = run.arrive("b", 2.0, width=7)
    assert [r.reason for r in told(refused, Reject)] == ["unfit"] and not told(refused, Welcome)
    assert list(run.coordinator.members.joined) == ["a"]
    assert told(run.arrive("b", 3.0, instance="11111111"), RoundState)[-1].state == "open"


def test_when_no_more_are_waited_for_most_of_those_there_decide() -> None:
    run = Driver(plan(devices=9, minimum_devices=2, join_s=60.0))
    for device, width in (("wrong", 7), ("a", 5), ("b", 5)):
        run.arrive(device, 1.0, width=width)
    opened = run.tick(60.0)
    assert only(opened, Opened) == Opened(1, 2) and width_of(run) == 5
    assert [r.reason for r in told(opened, Reject)] == ["unfit"]


def test_those_that_are_left_may_be_too_few() -> None:
    run = Driver(plan(devices=9, minimum_devices=3, join_s=60.0))
    for device, width in (("wrong", 7), ("a", 5), ("b", 5)):
        run.arrive(device, 1.0, width=width)
    assert only(run.tick(60.0), Finish).outcome.reason == "only 2 of 3 devices joined in 60 s"


def test_a_width_that_was_declared_is_that_of_the_run_from_the_first_device_on() -> None:
    run = Driver(plan(input_dim=5))
    refused = run.arrive("a", 1.0, width=7)
    assert [r.reason for r in told(refused, Reject)] == ["unfit"]
    assert (
        "a is refused: its records have 7 features, those of this run 5 (as its server was told): preprocess them "
        "alike, or start the server with --features 7"
    ) in notes(refused)
    assert len(told(run.arrive("b", 1.0, width=5), Welcome)) == 1


def test_a_run_that_goes_on_has_the_width_that_it_had() -> None:
    start = Start(1, {}, 100.0, 40, input_dim=5)
    run = Driver(plan(life=1, start=start, rounds=3))
    assert "(as before the stop)" in told(run.arrive("a", 101.0, width=7), Reject)[0].detail


def test_a_device_may_come_back_with_another_width_before_it_is_settled_and_not_after() -> None:
    run = Driver()
    run.arrive("a", 1.0)
    run.presence("a", 2.0, state="lost")
    assert told(run.arrive("a", 3.0, width=7, instance="11111111"), Reject) == []
    run.arrive("b", 4.0, width=7)
    assert width_of(run) == 7
    run.presence("a", 5.0, state="lost", instance="11111111")
    assert told(run.arrive("a", 6.0, instance="22222222"), Reject)


def test_a_width_does_not_outlive_those_who_settled_it_while_no_round_is_open() -> None:
    """Two of three expected devices were prepared wrongly, and agree; then they are stopped, mended, and back."""
    run = Driver(plan(devices=3, minimum_devices=3))
    for device in ("wrong", "likewise"):
        run.arrive(device, 1.0, width=7)
    assert width_of(run) == 7
    run.presence("wrong", 2.0, state="left")
    assert told(run.arrive("right", 3.0), Reject)  # one of them is still there
    run.presence("likewise", 4.0, state="left")
    for device in ("wrong", "likewise"):
        answer = run.arrive(device, 5.0, instance="11111111")
        assert told(answer, Welcome) and not told(answer, Reject) and width_of(run) == 5
    assert only(run.arrive("right", 6.0, instance="11111111"), Opened) == Opened(1, 3)


def test_one_that_settled_it_alone_and_was_started_anew_may_say_otherwise() -> None:
    run = Driver(plan(devices=3, minimum_devices=3))
    for device in ("wrong", "likewise"):
        run.arrive(device, 1.0, width=7)
    run.presence("likewise", 2.0, state="left")
    run.presence("wrong", 3.0, state="lost")  # its power went
    assert told(run.arrive("wrong", 4.0, instance="11111111"), Welcome)


def killed_after_they_settled_it() -> Driver:
    """Two of three expected devices were prepared wrongly, agree, and die without a word."""
    run = Driver(plan(devices=3, minimum_devices=3, join_s=60.0))
    for device in ("wrong", "likewise"):
        run.arrive(device, 1.0, width=7)
    assert width_of(run) == 7
    for device in ("wrong", "likewise"):
        run.presence(device, 2.0, state="lost")
    return run


@pytest.mark.parametrize("last", ["right", "wrong", "likewise"])
def test_the_dead_have_no_say_in_the_width(last: str) -> None:
    """They come back mended, and the third device before, between or after them."""
    run = killed_after_they_settled_it()
    order = [*(name for name in ("right", "wrong", "likewise") if name != last), last]
    answers = [run.arrive(device, 5.0, instance="11111111") for device in order]
    assert all(told(answer, Welcome) for answer in answers) and width_of(run) == 5
    assert "11111111" not in {reject.instance for answer in answers for reject in told(answer, Reject)}
    assert not any(
        f"{device} is refused" in note for device, answer in zip(order, answers, strict=True) for note in notes(answer)
    )
    assert only(answers[-1], Opened) == Opened(1, 3)


def test_those_that_were_cut_off_as_a_wrong_device_came_last_are_waited_for() -> None:
    run = Driver(plan(devices=3, minimum_devices=3, join_s=60.0))
    for device in "ab":
        run.arrive(device, 1.0)
        run.presence(device, 2.0, state="lost")
    came = run.arrive("wrong", 3.0, width=7)
    assert told(came, Welcome) and not told(came, Reject) and run.coordinator.collection is None
    run.arrive("a", 4.0)
    settled = run.arrive("b", 5.0)
    assert [reject.reason for reject in told(settled, Reject)] == ["unfit"] and width_of(run) == 5
    assert sorted(run.coordinator.members.joined) == ["a", "b"]


def test_when_no_more_are_waited_for_those_there_decide_and_not_the_dead() -> None:
    run = killed_after_they_settled_it()
    run.arrive("right", 3.0)
    assert run.coordinator.collection is None
    over = run.tick(60.0)
    assert width_of(run) == 5 and list(run.coordinator.members.joined) == ["right"]
    assert only(over, Finish).outcome.reason == "only 1 of 3 devices joined in 60 s"


def test_devices_that_agree_wait_for_none_that_is_away() -> None:
    run = Driver()
    run.arrive("a", 1.0)
    run.presence("a", 2.0, state="lost")
    assert only(run.arrive("b", 3.0), Opened) == Opened(1, 2)


def test_a_server_that_is_connected_anew_takes_nobody_for_dead_of_whom_it_has_not_heard_yet() -> None:
    run = Driver(plan(devices=3, minimum_devices=3))
    for device in "ab":
        run.arrive(device, 1.0)
    run.announce(2.0)
    assert told(run.arrive("wrong", 2.0, width=7), Reject) and width_of(run) == 5


def test_once_a_round_is_open_the_width_stays_though_all_have_left() -> None:
    run = Driver(plan(minimum_devices=1))
    run.start("a", "b")
    run.presence("a", 2.0, state="left")
    assert told(run.arrive("c", 2.0, width=7), Reject)
    run.presence("b", 3.0, state="left")
    assert told(run.arrive("d", 4.0, width=7), Reject)


def test_once_it_is_settled_nobody_who_comes_has_all_the_others_looked_through() -> None:
    """A thousand devices that connect again would cost a million looks."""

    class Joined(dict[str, Member]):
        looks = 0

        def items(self) -> Any:
            for item in super().items():
                self.looks += 1
                yield item

    names = [f"d{number}" for number in range(50)]
    run = Driver(plan(devices=50, minimum_devices=50))
    run.start(*names)
    joined = run.coordinator.members.joined = Joined(run.coordinator.members.joined)
    width = run.coordinator._door._width
    for name in names:
        join = Join(**run.head(name), instance="11111111", samples=SAMPLES, input_dim=WIDTH + 1)
        assert not width.weigh(join) and width.dissent(join) == ""
    assert joined.looks == 0


@pytest.mark.parametrize("devices", [1, 2, 3, 10])
def test_devices_that_agree_are_as_they_were(devices: int) -> None:
    run = Driver(replace(plan(), devices=devices, minimum_devices=devices))
    answers = [run.arrive(f"d{number}", 1.0) for number in range(devices)]
    assert not any(told(answer, Reject) for answer in answers) and run.coordinator.collection is not None

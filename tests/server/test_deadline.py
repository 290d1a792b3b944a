"""How long a round may take, worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from server.driver import HYPER, Driver, Record, plan

from broker_server.rounds.deadline import Pace, allowance, farewell
from edge_client.protocol.messages import FAREWELL_S


def test_a_fixed_deadline_is_what_the_plan_says() -> None:
    assert allowance(plan(deadline_s=12.5), {}, []) == 12.5


def test_nothing_is_known_before_the_first_delivery() -> None:
    assert allowance(plan(), {"a": Pace(10, 1000, 8000.0)}, ["a"]) is None


def test_who_delivered_before_is_expected_to_need_as_long_again() -> None:
    paces = {"a": Pace(10, 1000, 8000.0, elapsed_s=4.0), "b": Pace(10, 1000, 8000.0, elapsed_s=7.0)}
    assert allowance(plan(grace=2.0, patience_s=5.0), paces, ["a", "b"]) == 2.0 * 7.0 + 5.0
    assert allowance(plan(grace=2.0, patience_s=5.0), paces, ["a"]) == 2.0 * 4.0 + 5.0


def test_who_never_delivered_is_judged_by_the_slowest_that_did() -> None:
    """a: 1000 B at 8 kbit/s are 1 s of its 5 s, so 4 s for 10 records: 0.4 s each. b: 6 s less 2 s for 20: 0.2 s each.
    c has 30 records and a link of 1 kbit/s: 30 x 0.4 s + 3000 B x 8 / 1000 bit/s = 12 + 24 = 36 s."""
    paces = {
        "a": Pace(10, 1000, 8000.0, elapsed_s=5.0),
        "b": Pace(20, 2000, 8000.0, elapsed_s=6.0),
        "c": Pace(30, 3000, 1000.0),
    }
    assert allowance(plan(grace=3.0, patience_s=60.0), paces, "abc") == pytest.approx(3 * 36 + 60)
    assert allowance(plan(grace=3.0, patience_s=60.0), paces, "ab") == pytest.approx(3 * 6 + 60)


def test_a_link_of_unknown_rate_counts_nothing() -> None:
    paces = {"a": Pace(10, 1000, 0.0, elapsed_s=5.0), "b": Pace(10, 1_000_000, 0.0)}
    assert allowance(plan(grace=1.0, patience_s=0.0), paces, ["b"]) == pytest.approx(5.0)


def test_a_delivery_faster_than_its_declared_link_does_not_count_below_zero() -> None:
    paces = {"a": Pace(10, 1000, 8.0, elapsed_s=5.0), "b": Pace(10, 0, 0.0)}
    assert allowance(plan(grace=1.0, patience_s=1.0), paces, ["b"]) == 1.0


def test_with_nobody_left_to_wait_for_patience_remains() -> None:
    assert allowance(plan(patience_s=7.0), {"a": Pace(10, 1000, 0.0, elapsed_s=5.0)}, []) == 7.0


def test_the_slowest_link_still_gives_a_number() -> None:
    paces = {"a": Pace(1, 1, 0.0, elapsed_s=1.0), "b": Pace(1, 2**40, 5e-324)}
    assert allowance(plan(), paces, ["b"]) == 86_400.0  # a day
    assert allowance(plan(deadline_limit_s=math.inf), paces, ["b"]) == math.inf


def test_a_deadline_in_seconds_has_no_other_limit() -> None:
    assert allowance(plan(deadline_s=500.0, deadline_limit_s=50.0), {}, []) == 500.0


PACE = st.builds(
    Pace, st.integers(1, 2**32), st.integers(0, 2**40), st.floats(0, 1e15), st.none() | st.floats(0, 1e9),
    st.integers(0, 2**40), st.floats(0, 1e15),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from("abcd"), PACE), st.floats(1.0, 1e6))
def test_no_claim_of_any_device_moves_a_deadline_beyond_its_limit(paces: dict[str, Pace], limit: float) -> None:
    run = plan(deadline_limit_s=limit)
    assert (allowance(run, paces, paces) or 0.0) <= limit
    assert farewell(run, paces, paces) <= max(FAREWELL_S, limit)


@given(st.lists(st.sampled_from(["in time", "last moment", "late"]), min_size=2, max_size=40))
def test_devices_that_take_all_their_time_are_not_given_more_each_round_for_ever(ways: list[str]) -> None:
    """One of two devices delivers in the last moment, or too late, whenever it likes."""
    run, now = Driver(plan(rounds=100, deadline_limit_s=500.0)), 1.0
    run.start("a", "b", now=now)
    for round, way in enumerate(ways, 1):
        run.upload("a", round, now + 1.0)
        due = run.coordinator.due(now + 1.0)
        assert due is not None and due - now < 500.001
        moment = {"in time": now + 2.0, "last moment": due - 1e-3, "late": due + 1.0}[way]
        if way == "late":
            run.tick(due)
        run.upload("b", round, moment)
        run.aggregated(now := moment + 1.0)
    took = [action.record.closed_s - action.record.opened_s for action in run.log if isinstance(action, Record)]
    assert len(took) == len(ways) and max(took) < 500.001


def test_a_farewell_counts_the_download_and_the_epochs_of_the_alignment() -> None:
    """a took 4 s, b never delivered: 0.4 s a record for 20 of them, 8 s. Twice the epochs: 8 and 16 s; b's download of
    1000 B at 1 kbit/s takes 8 s: 24 s."""
    paces = {"a": Pace(10, 0, 0.0, elapsed_s=4.0, broadcast_bytes=1000), "b": Pace(20, 0, 0.0, None, 1000, 1000.0)}
    longer = plan(grace=2.0, patience_s=5.0, hyper=replace(HYPER, recon_epochs=3, align_epochs=6))
    assert farewell(longer, paces, "ab") == pytest.approx(2 * 24 + 5)
    assert farewell(longer, paces, "a") == pytest.approx(2 * 8 + 5)


def test_a_farewell_is_never_shorter_than_devices_that_were_cut_off_may_ask() -> None:
    assert farewell(plan(patience_s=1.0), {}, []) == FAREWELL_S
    assert farewell(plan(patience_s=1.0, deadline_s=2.0), {}, []) == FAREWELL_S
    assert farewell(plan(patience_s=1.0, deadline_s=200.0), {}, []) == 200.0

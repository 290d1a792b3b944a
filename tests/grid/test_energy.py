"""Joules by hand.

A Pi Zero 2 W (idle 0.60 W, active 2.33 W) behind NB-IoT (transmit 0.543 W, receive 0.090 W, no tail known) at
159 kbit/s up and 127 kbit/s down: 19,875 B up take 1 s on the air, 15,875 B down another.
"""

from dataclasses import replace

import pytest

from sim.config.hardware import radio
from sim.costs.energy import Energy, per_megabyte, power, together
from sim.links.profiles import profile

STAGES = {"reconstruction": 3.0, "alignment": 1.0, "upload": 2.0, "wait": 8.0, "evaluate": 99.0}


def test_the_parts_of_a_round() -> None:
    energy = power("nbiot-nb2-peak", "pi-zero-2-w").of_round(STAGES, 19_875, 15_875)
    assert energy.parts == {
        "transmit": pytest.approx(0.543), "receive": pytest.approx(0.090), "tail": None,
        "compute": pytest.approx(4 * 2.33), "waiting": pytest.approx(10 * 0.60),
    }  # fmt: skip
    assert energy.unknown == ("tail",)
    assert energy.total == energy.known == pytest.approx(0.543 + 0.090 + 9.32 + 6.0)


def test_a_tail_burns_after_each_burst() -> None:
    umts = replace(power("3g", "pi-zero-2-w"), radio=radio("umts"))
    assert umts.of_round(STAGES, 1000, 1000).parts["tail"] == pytest.approx(2 * 0.401 * 6)
    assert umts.of_round(STAGES, 0, 0).parts["tail"] == 0.0


def test_what_nobody_measured_is_unknown_and_never_zero() -> None:
    host = power("none", "host").of_round(STAGES, 1000, 1000)
    assert set(host.unknown) == set(host.parts) and host.total is None


def test_a_duty_cycle_spreads_the_same_air_time_over_more_seconds() -> None:
    up, _ = per_megabyte(profile("lorawan-sf7-field"))
    # 8e6 bits at 5,470 bit/s and 0.420 W; the field profile's rate is a hundredth of that
    assert up == pytest.approx(614.26, rel=1e-3)


def test_an_unknown_part_stays_unknown_in_a_sum() -> None:
    known = Energy({"transmit": 1.0, "receive": 1.0, "tail": 1.0, "compute": 1.0, "waiting": 1.0})
    partly = Energy({**known.parts, "tail": None})
    assert together([known, known]).parts["compute"] == 2.0
    assert together([known, partly]).parts["tail"] is None
    assert together([known, partly]).known == 8.0

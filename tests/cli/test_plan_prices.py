"""What a megabyte costs on the links of a plan: known or unknown, never zero for want of a figure."""

import json

import pytest
from end_to_end_tools import gca


def test_a_plan_says_what_a_megabyte_costs_or_that_nobody_knows() -> None:
    text = gca("plan", "demo", "--link", "nbiot-field,256kbit").stdout
    assert "a megabyte on nbiot-field: radio 434 J up, 72 J down; price unknown (sources" in text
    assert "a megabyte on 256kbit: radio unknown; price unknown (sources" in text
    told = json.loads(gca("plan", "demo", "--link", "nbiot-field,256kbit", "--json").stdout)["per_megabyte"]
    # 8e6 bits at 10 kbit/s are 800 s, at 0.543 W up and 0.090 W down.
    assert told["nbiot-field"] == {"joules_up": pytest.approx(434.4), "joules_down": pytest.approx(72.0), "eur": None}
    assert told["256kbit"] == {"joules_up": None, "joules_down": None, "eur": None}

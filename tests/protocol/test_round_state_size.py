"""The retained round state: under 200 bytes in whatever state, for the longest names that a run can have."""

from pathlib import Path

import numpy as np
import pytest

from broker_server.plan import RunPlan
from broker_server.rounds.collection import over
from broker_server.rounds.herald import Herald
from broker_server.rounds.ledger import Ledger
from broker_server.rounds.past import Past
from edge_client.protocol.codec import decode
from edge_client.protocol.lives import MAX_LIFE
from edge_client.protocol.messages import Cohort, RoundState
from sim.studies import run_name

EMULATED = run_name(Path("m" * 200))
LONGEST = "m" * 55  # with the incarnation 64, the longest legal name


def herald(run: str, life: int = 0) -> Herald:
    """A server late in its life: its messages carry numbers of the longest kind."""
    made = Herald(RunPlan(run, "5f0c21aa", "gca", 100, rounds=2**32, life=life), Ledger(), Past(latest_only=True))
    made._seq = 2**32 - 5
    return made


def test_the_longest_emulated_name_has_48_characters() -> None:
    assert len(EMULATED) == 48


@pytest.mark.parametrize("life", [0, 1, MAX_LIFE])
@pytest.mark.parametrize("run", [EMULATED, LONGEST], ids=["emulated", "longest"])
def test_every_state_stays_under_200_bytes(run: str, life: int) -> None:
    one, last = herald(run, life), 2**32 - 1
    arrays = {"centroids": np.ones((80, 16), np.float32)}
    said = [
        one.state("waiting", 0, ()),
        one.state("open", last, (), cohort=Cohort(b"\xff" * 8), deadline_s=86_399.9, reason="5f0c21aa"),
        one.close(over(last, ()), (), (), arrays)[0],
        one.state("ended", last, (), reason="ü€𝄞" * 100),
    ]
    for message in said:
        assert len(message.payload) < 200
        assert decode(message.payload, RoundState).run == f"{run}.5f0c21aa" + (f".{life}" if life else "")
    assert [decode(m.payload, RoundState).state for m in said] == ["waiting", "open", "closed", "ended"]
    assert decode(said[2].payload, RoundState).size > 80 * 16 * 4


def test_fields_at_their_default_do_not_travel() -> None:
    waiting = herald("m").state("waiting", 0, ()).payload
    for name in (b"cohort", b"deadline_s", b"chunks", b"digest", b"reason"):
        assert name not in waiting


def test_a_first_life_costs_no_byte_and_a_later_one_the_digits_of_its_number() -> None:
    sizes = [len(herald("m", life).state("waiting", 0, ()).payload) for life in (0, 1, 12)]
    assert [size - sizes[0] for size in sizes] == [0, 2, 3]

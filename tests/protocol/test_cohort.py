"""The draw of a round's cohort: exactly m devices, and each can tell for itself."""

import os
import subprocess
import sys
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.examples import NAMES

from edge_client.cohort import EVERYONE, draw, takes_part, ticket
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import RoundState

SEEDS = st.integers(0, 2**63 - 1)


@settings(max_examples=150, deadline=None)
@given(st.sets(NAMES, min_size=1, max_size=40), st.data(), SEEDS, st.integers(1, 2**32))
def test_exactly_m_are_chosen_and_every_device_agrees(devices: set[str], data, seed: int, round: int) -> None:
    size = data.draw(st.integers(1, len(devices)))
    cohort, chosen = draw(devices, size, seed, round)
    assert len(chosen) == size and set(chosen) <= devices and list(chosen) == sorted(chosen)
    assert {d for d in devices if takes_part(cohort, seed, round, d)} == set(chosen)
    assert (cohort == EVERYONE) == (size == len(devices))


@settings(max_examples=50, deadline=None)
@given(st.lists(NAMES, min_size=2, max_size=20, unique=True), st.randoms(use_true_random=False), SEEDS)
def test_the_order_of_joining_changes_nothing(devices: list[str], rng, seed: int) -> None:
    before = draw(devices, 1, seed, 3)
    rng.shuffle(devices)
    assert draw(devices, 1, seed, 3) == before


def test_a_ticket_is_the_digest_of_its_key() -> None:
    """BLAKE2b of the key, 8 bytes; read as a little-endian number and sent big-endian."""
    key = b"100|cohort|7|device-03"
    assert ticket(100, 7, "device-03") == blake2b(key, digest_size=8).digest()[::-1]


def test_rounds_and_seeds_draw_differently_and_fairly() -> None:
    devices = [f"device-{i:02d}" for i in range(10)]
    draws = [draw(devices, 3, 100, round)[1] for round in range(1, 1001)]
    times = [sum(d in chosen for chosen in draws) for d in devices]
    # Each expects 300 of 1000 with a standard deviation of 14.5.
    assert all(230 < t < 370 for t in times) and sum(times) == 3000
    assert draws[:20] != [draw(devices, 3, 101, round)[1] for round in range(1, 21)]


def test_ten_thousand_devices_make_the_message_no_longer() -> None:
    def size(devices: int) -> int:
        cohort, _ = draw([f"d{i}" for i in range(devices)], devices // 2, 100, 1)
        return len(
            encode(RoundState(run="magic.5f0c21aa", round=1, device="server", seq=1, state="open", cohort=cohort))
        )

    assert size(10) == size(10_000)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_hash_seed_of_python_changes_nothing(hash_seed: str) -> None:
    code = (
        "from edge_client.cohort import draw\n"
        "cohort, chosen = draw({f'device-{i}' for i in range(50)}, 7, 100, 3)\n"
        "print(cohort.below.hex(), *chosen)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    cohort, chosen = draw([f"device-{i}" for i in range(50)], 7, 100, 3)
    assert run.stdout.split() == [cohort.below.hex(), *chosen]

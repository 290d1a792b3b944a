"""Random streams by key, and the byte tally of one end."""

from hashlib import blake2b
from itertools import product

import numpy as np
import pytest

from edge_client.protocol.messages import Tally
from edge_client.protocol.tally import TallySheet
from edge_client.seeds import SHARED, digest, stream


def test_a_digest_is_blake2b_of_its_key_read_little_endian() -> None:
    expected = int.from_bytes(blake2b(b"7|upload|3|dev-1", digest_size=16).digest(), "little")
    assert digest(7, "upload", 3, "dev-1") == expected
    assert digest(7, "upload", 3, "dev-1", size=4) == int.from_bytes(
        blake2b(b"7|upload|3|dev-1", digest_size=4).digest(), "little"
    )


def test_golden_values_hold_on_every_machine() -> None:
    assert digest(0, "init") == 0xE660C00F899B4B8938A1EF798480D930
    assert stream(7, "upload", 3, "dev-1").integers(0, 1000, 5).tolist() == [974, 744, 649, 354, 506]


def test_no_two_keys_share_a_stream() -> None:
    keys = list(product((0, 1, 10), ("init", "order/recon/1", "order/recon/11"), (0, 1, 11), (SHARED, "a", "1|a")))
    firsts = {stream(*key).integers(0, 2**63) for key in keys}
    assert len(firsts) == len(keys)


def test_a_stream_does_not_depend_on_what_was_drawn_elsewhere() -> None:
    alone = stream(1, "upload", 2, "a").random(4)
    stream(1, "upload", 1, "a").random(100)
    np.random.default_rng(0).random(100)
    assert np.array_equal(stream(1, "upload", 2, "a").random(4), alone)


def test_streams_of_neighbouring_keys_are_uncorrelated() -> None:
    draws = np.stack([stream(1, "order", round, "a").standard_normal(2000) for round in range(20)])
    between = np.corrcoef(draws)[~np.eye(20, dtype=bool)]
    assert np.abs(between).max() < 5 / np.sqrt(2000)


def test_a_tally_counts_by_direction_and_kind() -> None:
    sheet = TallySheet()
    sheet.count("up", "upload", 100, 24)
    sheet.count("up", "upload", 50)
    sheet.count("down", "control", 7)
    sheet.add_payload("up", "upload", 8)
    assert sheet.drain() == (
        Tally(direction="down", kind="control", messages=1, message_bytes=7),
        Tally(direction="up", kind="upload", messages=2, payload_bytes=32, message_bytes=150),
    )
    assert sheet.drain() == ()


@pytest.mark.parametrize("kind", ["upload", "broadcast", "control", "telemetry", "ignored"])
def test_what_is_counted_after_a_drain_belongs_to_the_next(kind: str) -> None:
    sheet = TallySheet()
    sheet.count("down", kind, 1)  # type: ignore[arg-type]
    first = sheet.drain()
    sheet.count("down", kind, 2)  # type: ignore[arg-type]
    assert [t.message_bytes for t in (*first, *sheet.drain())] == [1, 2]

"""Bodies in chunks: any order, any repetition, and headers that lie."""

from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.errors import ProtocolError
from edge_client.protocol.chunks import MAX_CHUNK, Reassembly, split
from edge_client.protocol.codec import MAX_MESSAGE, digest, encode
from edge_client.protocol.messages import Chunk

BODY = bytes(range(10))


def chunks_of(body: bytes, size: int, round: int = 1) -> list[Chunk]:
    return list(split(body, size, run="magic.5f0c21aa", round=round, device="d1", seq=count(5).__next__))


def test_chunks_worked_out_by_hand() -> None:
    chunks = chunks_of(BODY, 4)
    assert [c.data for c in chunks] == [BODY[:4], BODY[4:8], BODY[8:]]
    assert [(c.index, c.chunks, c.size, c.seq) for c in chunks] == [(0, 3, 10, 5), (1, 3, 10, 6), (2, 3, 10, 7)]
    assert {c.digest for c in chunks} == {digest(BODY)}
    assert [len(c.data) for c in chunks_of(BODY, 5)] == [5, 5]
    assert [len(c.data) for c in chunks_of(BODY, 10)] == [10]


def test_the_largest_chunk_is_a_legal_message() -> None:
    longest = "m" * 64
    chunk = next(split(bytes(MAX_CHUNK), MAX_CHUNK, run=longest, round=2**32, device=longest, seq=lambda: 2**32))
    assert len(encode(chunk)) < MAX_CHUNK + 1024 < MAX_MESSAGE


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(1, 60), st.randoms(use_true_random=False))
def test_any_order_with_any_repetition_gives_the_body(body: bytes, size: int, rng) -> None:
    chunks = chunks_of(body, size)
    arriving = chunks + rng.choices(chunks, k=5)
    rng.shuffle(arriving)
    whole, seen = Reassembly(len(body)), set()
    for chunk in arriving:
        assert whole.add(chunk) == (chunk.index not in seen)
        seen.add(chunk.index)
        assert set(whole.missing) == set(range(len(chunks))) - seen
        assert whole.complete == (len(seen) == len(chunks))
        if not whole.complete:
            with pytest.raises(ProtocolError, match="missing"):
                whole.body()
    assert whole.body() == body


def test_nothing_is_known_before_the_first_chunk() -> None:
    whole = Reassembly(100)
    assert not whole.complete and whole.missing == ()
    with pytest.raises(ProtocolError):
        whole.body()


IMPOSSIBLE = ({"index": 3}, {"index": 65_535}, {"data": bytes(11)}, {"size": 2**40}, {"size": 2, "chunks": 3})
"""Headers that contradict themselves, or the limit of 100 bytes."""
CONTRARY = ({"size": 11}, {"size": 9}, {"chunks": 4}, {"chunks": 2}, {"digest": b"\0" * 8})
"""Headers that contradict the first chunk."""


@pytest.mark.parametrize(
    ("before", "lie"), [(0, lie) for lie in IMPOSSIBLE] + [(1, lie) for lie in IMPOSSIBLE + CONTRARY], ids=str
)
def test_a_lying_chunk_is_refused_and_harms_no_other(before: int, lie: dict[str, object]) -> None:
    chunks = chunks_of(BODY, 4)
    whole = Reassembly(100)
    for chunk in chunks[:before]:
        whole.add(chunk)
    with pytest.raises(ProtocolError):
        whole.add(msgspec.structs.replace(chunks[1], **lie))
    for chunk in chunks:
        whole.add(chunk)
    assert whole.body() == BODY


def test_a_body_larger_than_expected_is_refused_at_its_first_chunk() -> None:
    with pytest.raises(ProtocolError, match="announces 10 bytes in 3 chunks, at most 9 fit"):
        Reassembly(9).add(chunks_of(BODY, 4)[0])


def test_memory_never_exceeds_the_announced_size() -> None:
    whole = Reassembly(100)
    chunk = msgspec.structs.replace(chunks_of(BODY, 1)[0], data=bytes(4))
    assert whole.add(chunk)
    assert whole.add(msgspec.structs.replace(chunk, index=1))
    with pytest.raises(ProtocolError, match="more than the announced 10 bytes"):
        whole.add(msgspec.structs.replace(chunk, index=2))


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x08", b""], ids=["changed", "short", "empty"])
def test_chunks_that_do_not_add_up_to_the_digest_are_refused(data: bytes) -> None:
    first, second, third = chunks_of(BODY, 4)
    whole = Reassembly(100)
    for chunk in (first, second, msgspec.structs.replace(third, data=data)):
        assert whole.add(chunk)
    assert whole.complete
    with pytest.raises(ProtocolError, match="do not give the announced body"):
        whole.body()


def test_chunks_of_two_bodies_do_not_mix() -> None:
    whole = Reassembly(100)
    whole.add(chunks_of(BODY, 4)[0])
    with pytest.raises(ProtocolError, match="another body"):
        whole.add(chunks_of(BODY[::-1], 4)[1])

"""The codec in front of untrusted bytes: everything legal survives the trip, everything else is one ProtocolError."""

import random
import tracemalloc
from dataclasses import dataclass

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol.examples import MESSAGES, TYPES

from edge_client.errors import ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol.codec import (
    MAX_MESSAGE,
    decode,
    decode_arrays,
    encode,
    encode_arrays,
)
from edge_client.protocol.messages import (
    Accept,
    Chunk,
    Evaluation,
    Header,
    Join,
    Presence,
    RoundState,
    Standing,
    Tally,
    Telemetry,
    Welcome,
)

HEAD = {"run": "magic.5f0c21aa", "round": 7, "device": "device-03", "seq": 41}
SAMPLES: tuple[Header, ...] = (
    Presence(**HEAD, state="lost", instance="00ff00ff", detail="naïve"),
    Join(**HEAD, instance="00ff00ff", samples=7, input_dim=10, up_rate=26e3, awaits="acceptance"),
    Welcome(
        **HEAD, instance="00ff00ff", method="gca", seed=100, rounds=8, hyper=Hyperparameters(),
        standing=Standing(7, "partial", (0, 3)),
    ),
    RoundState(**HEAD, state="closed", chunks=1, size=416, digest=b"12345678"),
    Chunk(**HEAD, index=0, chunks=1, size=3, digest=b"12345678", data=b"abc"),
    Accept(**HEAD),
    Telemetry(
        **HEAD, outcome="completed", spent_s={"train": 1.5}, tallies=(Tally(direction="up", kind="upload"),),
        evaluations=(Evaluation(phase="recon", epoch=1, loss=0.5, threshold=1.0, accuracy=0.75, auroc=0.5,
                                average_precision=0.5),),
        ignored={"stale": 1}, state_sha256="ab",
    ),
)  # fmt: skip


def accept_map(**changes: object) -> dict[str, object]:
    return {"v": 1, **HEAD, **changes}


def refused(data: bytes, kind: type[Header] = Accept) -> str:
    """Return the one line with which these bytes are refused."""
    with pytest.raises(ProtocolError) as caught:
        decode(data, kind)
    line = str(caught.value)
    assert "\n" not in line and len(line) <= 300
    return line


# ---- what is legal ---------------------------------------------------------------------------------------------------


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MESSAGES)
def test_every_legal_message_survives_the_trip(message: Header) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_an_independent_msgpack_reads_our_bytes(message: Header) -> None:
    plain = msgpack.unpackb(encode(message))
    told = msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)))
    assert plain == msgpack.unpackb(told) | {"v": 1}
    assert msgpack.packb(plain) == encode(message)


def test_undefined_figures_travel_as_nan() -> None:
    told = SAMPLES[-1]
    assert isinstance(told, Telemetry)
    nan = msgspec.structs.replace(told.evaluations[0], auroc=float("nan"))
    back = decode(encode(msgspec.structs.replace(told, evaluations=(nan,))), Telemetry)
    assert np.isnan(back.evaluations[0].auroc)


@pytest.mark.parametrize("spent", [float("nan"), float("inf"), -1.0])
def test_seconds_that_are_none_are_refused(spent: float) -> None:
    """A study has no room for them: the server could not write them down."""
    told = SAMPLES[-1]
    assert isinstance(told, Telemetry)
    assert "spent_s" in refused(encode(msgspec.structs.replace(told, spent_s={"train": spent})), Telemetry)


def test_a_report_that_names_more_than_there_is_is_refused() -> None:
    """Each stage is a row of the study."""
    told = SAMPLES[-1]
    many = {f"stage-{number}": 1.0 for number in range(65)}
    tallies = (Tally(direction="up", kind="upload"),) * 65
    for field, value in {"spent_s": many, "spans_s": dict.fromkeys(many, (1.0, 0.0)), "tallies": tallies,
                         "ignored": dict.fromkeys(many, 1)}.items():  # fmt: skip
        assert field in refused(encode(msgspec.structs.replace(told, **{field: value})), Telemetry)


# ---- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_truncation_is_refused(message: Header) -> None:
    data = encode(message)
    for length in range(len(data)):
        refused(data[:length], type(message))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_flipped_bit_is_refused_or_gives_another_legal_message(message: Header) -> None:
    data = encode(message)
    refusals = 0
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            assert type(decode(bytes(broken), type(message))) is type(message)
        except ProtocolError:
            refusals += 1
    assert refusals > len(data)  # lengths, keys and literals are most of a message


def test_random_mutations_raise_nothing_else() -> None:
    """5,000 messages broken at random, each read as a type chosen at random."""
    rng = random.Random(20_260_101)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(5_000):
        data = bytearray(encode(rng.choice(SAMPLES)))
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[place:place] = rng.randbytes(rng.randint(1, 9))
                case 1:
                    del data[place : place + rng.randint(1, 9)]
                case 2:
                    data[place : place + 1] = rng.randbytes(1)
                case _:
                    data[place:place] = data[: rng.randint(0, 40)]
        try:
            decode(bytes(data), rng.choice(TYPES))
            outcomes["read"] += 1
        except ProtocolError:
            outcomes["refused"] += 1
        try:
            decode_arrays(bytes(data))
            outcomes["read"] += 1
        except ProtocolError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 9_000


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(TYPES))
def test_noise_raises_nothing_else(data: bytes, kind: type[Header]) -> None:
    for read in (lambda: decode(data, kind), lambda: decode_arrays(data)):
        try:
            read()
        except ProtocolError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seq": "41"}, "seq"),
        ({"seq": 41.5}, "seq"),
        ({"seq": True}, "seq"),
        ({"seq": None}, "seq"),
        ({"seq": -1}, "seq"),
        ({"seq": 2**33}, "seq"),
        ({"seq": [41]}, "seq"),
        ({"run": b"magic"}, "run"),
        ({"run": "magic/#"}, "run"),
        ({"run": "magic\n"}, "run"),
        ({"run": ""}, "run"),
        ({"device": "d" * 65}, "device"),
        ({"device": {"name": "d"}}, "device"),
        ({"v": 2}, "v"),
        ({"v": "1"}, "v"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_wrong_types_and_extra_fields_are_named(changes: dict[str, object], told: str) -> None:
    decode(msgpack.packb(accept_map()), Accept)  # the unchanged one is fine
    assert told in refused(msgpack.packb(accept_map(**changes)))


@pytest.mark.parametrize("field", ["run", "device", "seq"])
def test_a_missing_field_is_named(field: str) -> None:
    plain = accept_map()
    del plain[field]
    assert field in refused(msgpack.packb(plain))


@pytest.mark.parametrize("value", [None, 0, 1.5, "text", b"bytes", [], [1, "magic"], True, {}, {1: 2}, {"v": 1}])
def test_other_values_than_maps_of_fields_are_refused(value: object) -> None:
    refused(msgpack.packb(value))


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf"), 1e16])
def test_rates_without_sense_are_refused(rate: float) -> None:
    join = msgpack.unpackb(encode(SAMPLES[1]))
    refused(msgpack.packb(join | {"up_rate": rate}), Join)


def test_another_type_than_the_topic_says_is_refused() -> None:
    for message in SAMPLES:
        for kind in TYPES:
            if kind is not type(message):
                refused(encode(message), kind)


def test_a_key_given_twice_is_refused() -> None:
    whole = msgpack.packb(accept_map())
    twice = bytes([whole[0] + 1]) + whole[1:] + msgpack.packb("seq") + msgpack.packb(42)
    refused(twice)


def test_bytes_after_the_message_are_refused() -> None:
    refused(encode(SAMPLES[5]) + b"\xc0")


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"])
def test_bad_utf8_is_refused(text: bytes) -> None:
    """Stray bytes, a lone surrogate, an overlong slash, and a code point beyond the last."""
    good = msgpack.packb(accept_map(run="A" * len(text)))
    refused(good.replace(b"A" * len(text), text))


def test_a_timestamp_or_an_unknown_extension_is_refused() -> None:
    for extension in (msgpack.Timestamp(1), msgpack.ExtType(5, b"abc")):
        refused(msgpack.packb(accept_map(seq=extension)))
        refused(msgpack.packb(extension))


@dataclass(frozen=True)
class Claim:
    """A header that announces 2**32 - 1 of something, followed by almost nothing."""

    name: str
    head: bytes


CLAIMS = [Claim("list", b"\xdd"), Claim("map", b"\xdf"), Claim("text", b"\xdb"), Claim("bytes", b"\xc6"),
          Claim("extension", b"\xc9")]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_huge_claimed_length_costs_nothing(claim: Claim) -> None:
    data = claim.head + b"\xff" * 4 + b"\x00" * 20
    nested = msgpack.packb(accept_map(seq=0))[:-1] + data
    tracemalloc.start()
    try:
        refused(data)
        refused(nested)
        with pytest.raises(ProtocolError):
            decode_arrays(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


LISTS = b"\xdc\xff\xff" + b"\x90" * 65_535
MAPS = b"\xde\x01\x00" + b"".join(b"\xa2%02x\x80" % number for number in range(256))
SHORT_LISTS = b"\x94\x90\x90\x90" * 300 + b"\x90" * 301
SMALL = {"lists": b"\x81\xa1x\x9f" + LISTS * 15, "short lists": b"\x81\xa1x" + SHORT_LISTS,
         "maps": b"\x84" + b"".join(b"\xa1" + name + MAPS for name in (b"a", b"b", b"c", b"d"))}  # fmt: skip


@pytest.mark.parametrize("kind", SMALL)
def test_a_body_of_small_values_costs_no_more_memory_than_its_bytes(kind: str) -> None:
    """A list of no length is one byte on the wire and 64 in memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="not msgpack: ValueError"):
            decode_arrays(SMALL[kind])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(SMALL[kind]) + 200_000


def test_a_body_has_room_for_many_arrays() -> None:
    arrays = {f"layer-{number}": np.full((1, 1, 1, 2), number, np.float32) for number in range(256)}
    back = decode_arrays(encode_arrays(arrays))
    assert back.keys() == arrays.keys() and all((back[name] == arrays[name]).all() for name in arrays)


@pytest.mark.parametrize("depth", [400, 1_000, 10_000, MAX_MESSAGE - 1])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"], ids=["lists", "maps"])
def test_deep_nesting_is_refused(depth: int, opening: bytes) -> None:
    data = (opening * depth)[: MAX_MESSAGE - 1] + b"\xc0"
    refused(data)
    with pytest.raises(ProtocolError):
        decode_arrays(data)


def test_one_byte_over_the_limit_is_refused_unread() -> None:
    fits = encode(Chunk(**HEAD, index=0, chunks=1, size=1, digest=bytes(8), data=b""))
    data = bytes(MAX_MESSAGE - len(fits) - 3)  # a long string's length takes three bytes more
    largest = encode(Chunk(**HEAD, index=0, chunks=1, size=1, digest=bytes(8), data=data))
    assert len(largest) == MAX_MESSAGE
    assert decode(largest, Chunk).data == data
    over = encode(Chunk(**HEAD, index=0, chunks=1, size=1, digest=bytes(8), data=data + b"\0"))
    assert f"{MAX_MESSAGE + 1} bytes is over the limit of {MAX_MESSAGE}" in refused(over, Chunk)


def test_a_list_longer_than_any_legal_one_is_refused() -> None:
    refused(msgpack.packb([0] * 65_537), Chunk)

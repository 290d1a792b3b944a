"""What each codec makes of arrays, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edge_client.codecs import codec_named
from edge_client.codecs.zstd import FRAME
from edge_client.errors import ConfigError, GcaError, ProtocolError
from edge_client.protocol.codec import payload_bytes

LIMIT = 10_000_000
NAMES = ["float32", "float16", "int8", "float32+zstd", "float16+zstd", "int8+zstd"]
LATENTS = np.random.default_rng(1).normal(size=(40, 16)).astype(np.float32)
VECTOR = np.random.default_rng(2).normal(size=1000).astype(np.float32)
SUPPORT = np.array([3.5, 900.25], np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_names_and_types_come_back(name: str) -> None:
    sent = {"latents": LATENTS, "parameters": VECTOR, "support": SUPPORT}
    got = codec_named(name).unpack(codec_named(name).pack(sent), LIMIT)
    assert {n: (a.shape, a.dtype) for n, a in got.items()} == {n: (a.shape, a.dtype) for n, a in sent.items()}


@pytest.mark.parametrize("name", ["float32", "float32+zstd"])
def test_without_quantisation_every_bit_comes_back(name: str) -> None:
    got = codec_named(name).unpack(codec_named(name).pack({"latents": LATENTS}), LIMIT)
    assert got["latents"].tobytes() == LATENTS.tobytes()


def test_eight_bits_by_hand() -> None:
    """Row (1, -2, 0.5): s = 2/127, so q = (63.5 -> 64, -127, 31.75 -> 32); a row of zeros stays one."""
    sent = {"latents": np.array([[1.0, -2.0, 0.5], [0, 0, 0]], np.float32)}
    packed = codec_named("int8").pack(sent)
    assert packed["latents"].tolist() == [[64, -127, 32], [0, 0, 0]]
    assert packed["latents/scale"] == pytest.approx([2 / 127, 0.0])
    got = codec_named("int8").unpack(packed, LIMIT)["latents"]
    np.testing.assert_allclose(got, [[128 / 127, -2.0, 64 / 127], [0, 0, 0]], rtol=1e-6)


@given(
    arrays.arrays(
        np.float32,
        st.one_of(st.tuples(st.integers(1, 6), st.integers(1, 9)), st.tuples(st.integers(250, 700))),
        elements=st.floats(-1e6, 1e6, width=32),
    )
)
def test_the_error_of_eight_bits_is_half_a_level(values: np.ndarray) -> None:
    got = codec_named("int8").unpack(codec_named("int8").pack({"x": values}), LIMIT)["x"]
    if values.ndim == 1:
        blocks = [values[start : start + 256] for start in range(0, len(values), 256)]
        steps = np.concatenate([np.full(len(b), np.abs(b).max() / 127) for b in blocks])
        steps = steps if len(values) >= 256 else np.zeros(len(values))
    else:
        steps = np.abs(values).max(axis=1, keepdims=True) / 127
    assert (np.abs(got.astype(float) - values) <= steps / 2 * (1 + 1e-5) + np.abs(values) * 1e-6 + 1e-40).all()


def test_what_travels_is_what_the_ledger_counts() -> None:
    sent = {"latents": LATENTS}  # 40 x 16
    assert payload_bytes(codec_named("float32").pack(sent)) == 2560
    assert payload_bytes(codec_named("float16").pack(sent)) == 1280
    assert payload_bytes(codec_named("int8").pack(sent)) == 640 + 4 * 40
    assert payload_bytes(codec_named("float32+zstd").pack({"x": np.zeros(5000, np.float32)})) < 200


def test_half_precision_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(GcaError, match="65,504"):
        codec_named("float16").pack({"x": np.array([1e5], np.float32)})
    with pytest.raises(ProtocolError, match="float16 was agreed"):
        codec_named("float16").unpack({"x": VECTOR}, LIMIT)


@pytest.mark.parametrize(
    "hostile",
    [
        {"x": np.zeros((2, 3), np.int8)},
        {"x": np.zeros((2, 3), np.int8), "x/scale": np.zeros(3, np.float32)},
        {"x": np.zeros((2, 3), np.int8), "x/scale": np.zeros(2, np.float64)},
        {"x": np.zeros(300, np.int8), "x/scale": np.zeros(1, np.float32)},
        {"x/scale": np.zeros(2, np.float32)},
    ],
)
def test_scales_that_do_not_fit_are_refused(hostile: dict[str, np.ndarray]) -> None:
    with pytest.raises(ProtocolError, match="scales"):
        codec_named("int8").unpack(hostile, LIMIT)


def test_a_frame_that_unfolds_to_more_than_the_limit_is_refused() -> None:
    bomb = codec_named("float32+zstd").pack({"x": np.zeros(10_000_000, np.float32)})
    assert bomb[FRAME].nbytes < 10_000
    with pytest.raises(ProtocolError, match="limit"):
        codec_named("float32+zstd").unpack(bomb, 100_000)


def test_a_limit_beyond_all_memory_takes_none() -> None:
    """It follows from what a device claims to have."""
    packed = codec_named("float32+zstd").pack({"x": LATENTS})
    assert codec_named("float32+zstd").unpack(packed, 2**60)["x"].tobytes() == LATENTS.tobytes()


@pytest.mark.parametrize(
    "hostile",
    [{}, {"x": VECTOR}, {FRAME: VECTOR}, {FRAME: np.frombuffer(b"no frame at all", np.uint8)},
     {FRAME: np.zeros((2, 2), np.uint8)}, {FRAME: np.zeros(0, np.uint8)}],
)  # fmt: skip
def test_what_is_no_frame_is_refused(hostile: dict[str, np.ndarray]) -> None:
    with pytest.raises(ProtocolError):
        codec_named("float32+zstd").unpack(hostile, LIMIT)


@pytest.mark.parametrize("name", ["", "int4", "zstd", "zstd+int8", "int8+int8", "int8+zstd+zstd", "float16+int8"])
def test_a_codec_that_there_is_not_says_which_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match="float32, float16 or int8"):
        codec_named(name)

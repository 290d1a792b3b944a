"""Arrays in a body, in front of untrusted bytes: what numpy can hold survives the trip, all else is a ProtocolError."""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from edge_client.errors import ProtocolError
from edge_client.protocol.codec import Arrays, decode_arrays, encode_arrays, payload_bytes


def body(dtype: object, shape: object, data: object, **more: object) -> bytes:
    packed: bytes = msgpack.packb({"codes": {"dtype": dtype, "shape": shape, "data": data, **more}})
    return packed


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=10),
        st.sampled_from(["<f4", ">f4", "<f8", "<i4", ">i8"]).flatmap(
            lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
        ),
        max_size=3,
    )
)
def test_arrays_survive_the_trip(arrays: Arrays) -> None:
    back = decode_arrays(encode_arrays(arrays))
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype.newbyteorder("=") and back[name].dtype.isnative
        assert back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)
        assert not back[name].flags.writeable
    assert payload_bytes(back) == sum(a.size * a.dtype.itemsize for a in arrays.values())


def test_the_bytes_of_an_array_are_little_endian_in_c_order() -> None:
    fortran = np.asfortranarray(np.array([[1, 2], [3, 4]], ">i4"))
    wire = msgpack.unpackb(encode_arrays({"b": fortran, "a": fortran[:, 1]}))
    assert list(wire) == ["a", "b"]
    assert wire["b"] == {"dtype": "<i4", "shape": [2, 2], "data": bytes.fromhex("01000000020000000300000004000000")}
    assert wire["a"] == {"dtype": "<i4", "shape": [2], "data": bytes.fromhex("0200000004000000")}


def test_what_was_decoded_cannot_be_changed() -> None:
    array = decode_arrays(body("<f4", [2], bytes(8)))["codes"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0


@pytest.mark.parametrize("dtype", [">f4", "<f2", "|O", "O", "<U4", "|S4", "<M8[s]", "<c8", "f4,f4", "|V4", "", 4, None])
def test_other_dtypes_are_refused(dtype: object) -> None:
    with pytest.raises(ProtocolError):
        decode_arrays(body(dtype, [1], bytes(4)))


@pytest.mark.parametrize(
    "shape",
    [
        [3], [1], [2, 2], [-2], [-1, -2], [2.0], ["2"], [True, 2], None, 2, [2**31 + 1], [1] * 5,
        [2**31, 2**31, 2**31, 2**31],  # 2**124 elements: 0 modulo 2**64
        [2**31, 2**31, 4],  # 2**64 elements, 0 in 64 bits
        [2**30, 2**30, 2**4, 2**0],
        [0],
    ],
    ids=str,
)  # fmt: skip
def test_shapes_that_do_not_fit_eight_bytes_are_refused(shape: object) -> None:
    assert decode_arrays(body("<f4", [2], bytes(8)))["codes"].shape == (2,)
    with pytest.raises(ProtocolError):
        decode_arrays(body("<f4", shape, bytes(8)))


def test_empty_arrays_may_not_hide_a_shape_numpy_cannot_count() -> None:
    assert decode_arrays(body("<f8", [0, 16], b""))["codes"].shape == (0, 16)
    with pytest.raises(ProtocolError, match="cannot have shape"):
        decode_arrays(body("<f8", [0, 2**31, 2**31, 2**31], b""))


def test_an_array_with_more_or_less_than_its_fields_is_refused() -> None:
    with pytest.raises(ProtocolError, match="order"):
        decode_arrays(body("<f4", [1], bytes(4), order="F"))
    with pytest.raises(ProtocolError, match="data"):
        decode_arrays(msgpack.packb({"codes": {"dtype": "<f4", "shape": [1]}}))
    with pytest.raises(ProtocolError):
        decode_arrays(body("<f4", [4], "text"))


def test_a_body_over_its_limit_is_refused() -> None:
    whole = encode_arrays({"codes": np.zeros(4, np.float32)})
    assert payload_bytes(decode_arrays(whole, len(whole))) == 16
    with pytest.raises(ProtocolError, match="over the limit"):
        decode_arrays(whole, len(whole) - 1)

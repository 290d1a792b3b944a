"""Checkpoints: whole or not at all."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from broker_server.study.checkpoint import load_checkpoint, save_checkpoint
from edge_client.errors import EnvironmentFault

ARRAYS = {
    "encoder.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.array([1.5, np.nan, np.inf], np.float64),
    "steps": np.array(7, np.int64),
    "none": np.empty((0, 4), np.float32),
}
ABOUT = {"dataset": "magic", "round": "3"}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, ARRAYS, ABOUT)
    arrays, about = load_checkpoint(path)
    assert about == ABOUT and arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)


def test_the_file_is_the_public_format(tmp_path: Path) -> None:
    """safetensors: a little-endian length, a JSON header, then the raw numbers."""
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, {"w": ARRAYS["encoder.weight"].T}, ABOUT)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"] == ABOUT
    assert (header["w"]["dtype"], header["w"]["shape"], header["w"]["data_offsets"]) == ("F32", [3, 2], [0, 24])
    assert struct.unpack("<6f", content[8 + length :]) == (0, 3, 1, 4, 2, 5)


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, {"w": np.zeros(3)}, {"round": "1"})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentFault, match=r"model\.safetensors: No space left on device; the checkpoint"):
            save_checkpoint(path, {"w": np.ones(3)}, {"round": "2"})
    assert load_checkpoint(path)[1] == {"round": "1"}
    assert list(tmp_path.iterdir()) == [path]  # the half-written one is gone
    save_checkpoint(path, {"w": np.ones(3)}, {"round": "2"})
    assert load_checkpoint(path)[1] == {"round": "2"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"nowhere/m: No such file or directory; .* could not be written"):
        save_checkpoint(tmp_path / "nowhere" / "m", ARRAYS, ABOUT)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, ARRAYS, ABOUT)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(EnvironmentFault, match="is no readable checkpoint"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 8 + b"{}", b"\x80\x04K\x01.", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"\xff\xfe{}"],
    ids=["huge header", "pickle", "no map", "no text"],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match="is no readable checkpoint") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(EnvironmentFault, match=f"{path}: .*no readable checkpoint"):
            load_checkpoint(path)

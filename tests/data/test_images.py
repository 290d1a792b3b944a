"""Image files are parsed as their formats say, broken ones are one clear line, and a seed's task is the paper's."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from edge_client.errors import ConfigError, EnvironmentFault
from sim.config.study import load_study
from sim.costs.payload import uploaded_codes
from sim.data import Dataset, image_files, load, shares
from sim.data.files import obtain
from sim.data.image_files import decode_jpeg, read_cifar_archive, read_idx, read_jpeg_archive
from sim.data.image_sources import CIFAR10, CIFAR10_JPEG, FASHION_MNIST
from sim.data.images import class_pair

ImageLoader = Callable[[str, int], Dataset]
PAIRS = {100: (2, 8), 200: (0, 4), 300: (9, 5)}


@pytest.fixture(scope="session")
def images(data_dir: Path) -> ImageLoader:
    return cache(lambda name, seed: load(name, data_dir, seed=seed, offline=True))


# Fashion-MNIST's format


def idx(values: NDArray[np.uint8]) -> bytes:
    """Write idx by hand: 0, 0, 8 for bytes, the number of axes, each length in four big-endian bytes, the values."""
    return bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


TINY = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
LABELS = np.array([7, 3], np.uint8)


def test_idx_files_hold_images_row_by_row() -> None:
    training, test = read_idx([idx(TINY), idx(LABELS), idx(TINY[:1]), idx(LABELS[:1])])
    assert training.classes.tolist() == [7, 3] and test.classes.tolist() == [7]
    assert training.pixels(np.array([1])).tolist() == [[6, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("pixels", "labels", "complaint"),
    [
        (b"", idx(LABELS), "not an idx file of bytes with 3 axes"),
        (idx(TINY)[:10], idx(LABELS), "not an idx file"),
        (idx(TINY)[:-1], idx(LABELS), "says 2 x 2 x 3 and holds 11 bytes"),
        (idx(TINY) + b"x", idx(LABELS), "holds 13 bytes"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, idx(LABELS), "holds 0 bytes"),
        (b"\0\0\x0d\x03" + idx(TINY)[4:], idx(LABELS), "not an idx file"),
        (idx(LABELS), idx(LABELS), "3 axes"),
        (idx(TINY), idx(LABELS[:1]), "2 images and 1 labels"),
    ],
)
def test_broken_idx_files(pixels: bytes, labels: bytes, complaint: str) -> None:
    with pytest.raises(EnvironmentFault, match=complaint):
        read_idx([pixels, labels, pixels, labels])


# CIFAR-10's archive


def tar(members: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            if name in links:
                entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, "/etc/passwd", 0
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def batches(records: int) -> dict[str, bytes]:
    """Six batches in no order; batch b's record r is of class b with red = r, green = 100 and blue = 200."""
    names = ["test_batch.bin", *(f"data_batch_{number}.bin" for number in (3, 1, 2, 5, 4))]
    planes = [bytes([r]) * 1024 + bytes([100]) * 1024 + bytes([200]) * 1024 for r in range(records)]
    return {name: b"".join(bytes([int(name[11]) if name[0] == "d" else 9]) + p for p in planes) for name in names}


def test_the_binary_archive_is_read_in_order_plane_by_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "CIFAR_MEMBER", 2 * 3073)
    training, test = read_cifar_archive([tar(batches(2))])
    assert training.classes.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] and test.classes.tolist() == [9, 9]
    (pixels,) = training.pixels(np.array([9]))
    assert pixels[[0, 1023, 1024, 2047, 2048, 3071]].tolist() == [1, 1, 100, 100, 200, 200]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"<html>", "cannot be read"),
        (tar(batches(2))[:-40], "cannot be read"),
        (tar({"data_batch_1.bin": bytes(2 * 3073)}), "data_batch_2.bin"),
        (tar(batches(2) | {"data_batch_4.bin": bytes(3073)}), r"data_batch_4.bin .* does not hold 6,146 bytes"),
        (tar(batches(2) | {"test_batch.bin": bytes(3 * 3073)}), "test_batch.bin .* does not hold"),
        (tar(batches(2), links=("test_batch.bin",)), "test_batch.bin .* does not hold"),
    ],
    ids=["page", "truncated", "missing", "short", "long", "link"],
)
def test_broken_archives(content: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "CIFAR_MEMBER", 2 * 3073)
    with pytest.raises(EnvironmentFault, match=complaint):
        read_cifar_archive([content])


# CIFAR-10 as JPEG


def jpeg(size: tuple[int, int] = (32, 32), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    packed = io.BytesIO()
    Image.new(mode, size, 10 if mode == "L" else (250, 128, 10)).save(packed, kind)
    return packed.getvalue()


def archive(files: list[bytes], **changed: NDArray[np.generic]) -> bytes:
    arrays: dict[str, NDArray[np.generic]] = {
        "blob": np.frombuffer(b"".join(files), np.uint8),
        "offset": np.cumsum([0, *map(len, files)]).astype(np.uint32),
        "label": np.arange(len(files), dtype=np.uint8),
        "split": np.arange(len(files), dtype=np.uint8) % 2,
    }
    packed = io.BytesIO()
    np.savez(packed, **(arrays | changed))
    return packed.getvalue()


def test_jpegs_are_decoded_plane_by_plane() -> None:
    training, test = read_jpeg_archive([archive([jpeg(), jpeg(), jpeg()])])
    assert training.classes.tolist() == [0, 2] and test.classes.tolist() == [1]
    planes = training.pixels(np.array([1])).reshape(3, 1024).astype(int)
    assert np.abs(planes - np.array([[250], [128], [10]])).max() <= 3


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (jpeg((33, 32)), "RGB of 33 x 32 pixels instead of RGB of 32 x 32"),
        (jpeg(mode="L"), "is L of"),
        (jpeg(kind="PNG"), "cannot be decoded"),
        (jpeg()[:200], "cannot be decoded"),
        (b"", "cannot be decoded"),
    ],
    ids=["larger", "grey", "png", "truncated", "empty"],
)
def test_broken_jpegs(content: bytes, complaint: str) -> None:
    with pytest.raises(EnvironmentFault, match=complaint):
        decode_jpeg(content, (3, 32, 32))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PK\3\4", "cannot be read"),
        (archive([jpeg()], label=np.array([{}], dtype=object)), "cannot be read"),  # a pickle, never loaded
        (archive([jpeg()], label=np.zeros(2, np.uint8)), "do not fit together"),
        (archive([jpeg()], offset=np.array([0, 2**31], np.uint32)), "do not fit together"),
        (archive([jpeg()], split=np.zeros(1, np.int64)), "do not fit together"),
    ],
)
def test_broken_jpeg_archives(content: bytes, complaint: str) -> None:
    with pytest.raises(EnvironmentFault, match=complaint):
        read_jpeg_archive([content])


@pytest.mark.real_data
def test_the_jpegs_are_cifar10s_images_in_its_order(data_dir: Path) -> None:
    """Against the lossless copies of the first 4,000 training and 1,000 test images, one image per row."""
    folder = data_dir / "cifar10" / "lossless"
    written = gzip.decompress((folder / "cifar10_labels.js.gz").read_bytes()).decode()
    labels = np.array(json.loads(written[written.index("[") : written.index("]") + 1]))
    content, _ = obtain("cifar10", CIFAR10_JPEG.files[0], data_dir, offline=True)
    training, test = read_jpeg_archive([content])
    for half, batch, first, expected in ((training, 3, 3_000, [0, 2, 9]), (test, 50, 50_000, [0, 2, 4, 5, 8, 9])):
        with Image.open(folder / f"cifar10_batch_{batch}.png") as opened:
            lossless = np.asarray(opened).transpose(0, 2, 1).reshape(1_000, 3_072)
        assert np.unique(half.classes).tolist() == expected
        for kind in expected:
            rows = np.flatnonzero(labels[first : first + 1_000] == kind)[:20]
            before = int((labels[first - first % 10_000 : first] == kind).sum())
            ours = half.pixels(np.flatnonzero(half.classes == kind)[before : before + 20])
            error = (ours.astype(float) - lossless[rows]).std(axis=1)
            assert error.max() < 20 and error.mean() < 10, kind


# Tasks


def test_the_papers_seeds_have_the_papers_pairs() -> None:
    assert {seed: class_pair(seed) for seed in PAIRS} == PAIRS


@given(st.integers(0, 2**63 - 1))
def test_any_other_seed_has_two_distinct_classes_and_keeps_them(seed: int) -> None:
    normal, anomaly = class_pair(seed)
    assert normal != anomaly and {normal, anomaly} <= set(range(10))
    assert class_pair(seed) == (normal, anomaly)


def test_other_seeds_reach_every_class() -> None:
    assert {kind for seed in range(60) for kind in class_pair(seed)} == set(range(10))


@pytest.mark.real_data
@pytest.mark.parametrize("seed", PAIRS)
@pytest.mark.parametrize(("name", "normals", "codes"), [("fashion_mnist", 6_000, 600), ("cifar10_jpeg", 5_000, 500)])
def test_sizes_are_those_of_table_11(images: ImageLoader, name: str, normals: int, codes: int, seed: int) -> None:
    data = images(name, seed)
    source = {"fashion_mnist": FASHION_MNIST, "cifar10_jpeg": CIFAR10_JPEG}[name]
    assert data.image == source.image and data.input_dim == source.input_dim == int(np.prod(source.image))
    assert data.train.shape == (normals, data.input_dim) == (source.train_rows, source.input_dim)
    assert data.test.shape == (2_000, data.input_dim) and int(data.labels.sum()) == 1_000
    assert (data.train.dtype, data.test.dtype, data.labels.dtype) == (np.float32, np.float32, np.int8)
    for half in (data.train, data.test):
        assert -1.0 <= half.min() < -0.99 and 0.99 < half.max() <= 1.0
    study = load_study("demo", {"dataset": name, "devices": 20, "seed": seed})
    assert uploaded_codes(0.1, [len(part) for part in shares(study, data)]) == codes


@pytest.mark.real_data
def test_fashion_mnist_is_the_published_one(data_dir: Path) -> None:
    """Its first images are an ankle boot (9) and a T-shirt (0); mean 0.2860 and deviation 0.3530 are widely quoted."""
    contents = [obtain("fashion_mnist", file, data_dir, offline=True)[0] for file in FASHION_MNIST.files]
    training, test = read_idx(contents)
    assert training.classes[:2].tolist() == [9, 0] and test.classes[:2].tolist() == [9, 2]
    assert np.bincount(training.classes).tolist() == [6_000] * 10 and np.bincount(test.classes).tolist() == [1_000] * 10
    pixels = training.pixels(np.arange(60_000)) / np.float32(255)
    assert (pixels.mean(dtype=float), pixels.std(dtype=float)) == pytest.approx((0.2860, 0.3530), abs=5e-5)


@pytest.mark.real_data
def test_labels_belong_to_their_images(images: ImageLoader) -> None:
    """Seed 100's normal, a pullover, shares its training images' mean; the anomaly, a bag, does not."""
    data = images("fashion_mnist", 100)
    distance = ((data.test - data.train.mean(axis=0)) ** 2).sum(axis=1)
    assert np.median(distance[data.labels == 0]) < 0.7 * np.median(distance[data.labels == 1])


def test_images_need_a_seed_and_the_small_copy_its_own(bare_machine: Path, data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="'fashion_mnist' takes its pair of classes from the seed"):
        load("fashion_mnist")
    with pytest.raises(ConfigError, match=r"JPEG q75\) has no images of seed 7's classes, .*use seed 100, 200, 300"):
        load("cifar10_jpeg", data_dir, seed=7)
    with pytest.raises(EnvironmentFault, match=f"download {CIFAR10.files[0].url} and put it at"):
        load("cifar10", seed=100, offline=True)
    with pytest.raises(EnvironmentFault, match=r"pairs_jpeg\.npz is not on this machine; it has no public home"):
        load("cifar10_jpeg", seed=100)

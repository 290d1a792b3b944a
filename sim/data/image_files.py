"""Read published files of images. Each reader takes verified bytes and still trusts no number in them.

Every reader returns (training, test); pixels stay bytes until a pair of classes has been chosen from them.
"""

import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import EnvironmentFault, pip_install

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Images:
    """One half of a dataset, in file order: the class of each image, and the pixels of chosen ones.

    `pixels(rows)` returns (len(rows), channels * height * width), channel after channel, each row by row.
    """

    classes: Pixels
    pixels: Callable[[NDArray[np.intp]], Pixels]


def _stored(classes: Pixels, pixels: Pixels) -> Images:
    return Images(classes, lambda rows: pixels[rows])


# Fashion-MNIST


def read_idx(contents: list[bytes]) -> tuple[Images, Images]:
    """Read training images, training labels, test images and test labels in idx format (LeCun's MNIST page)."""
    halves = []
    for images, labels in (contents[0:2], contents[2:4]):
        pixels, classes = _idx(images, 3), _idx(labels, 1)
        if len(pixels) != len(classes):
            raise EnvironmentFault(f"idx files hold {len(pixels):,} images and {len(classes):,} labels; replace them")
        halves.append(_stored(classes, pixels.reshape(len(pixels), -1)))
    return halves[0], halves[1]


def _idx(content: bytes, dimensions: int) -> Pixels:
    """Parse one idx file of bytes: two zeros, the type 0x08, the number of axes, their lengths, the values."""
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 0x08, dimensions)):
        raise EnvironmentFault(f"not an idx file of bytes with {dimensions} axes; replace it with the published one")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, offset=4))
    if prod(shape) != len(content) - header:
        raise EnvironmentFault(
            f"an idx file says {' x '.join(map(str, shape))} and holds {len(content) - header:,} bytes; replace it"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


# CIFAR-10, binary version

CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes: the class, then the red, the green and the blue plane."""
CIFAR_MEMBER = 10_000 * CIFAR_RECORD
_CIFAR_FOLDER = "cifar-10-batches-bin"


def read_cifar_archive(contents: list[bytes]) -> tuple[Images, Images]:
    """Read the five training batches and the test batch out of the tar archive, in memory."""
    try:
        with tarfile.open(fileobj=io.BytesIO(contents[0]), mode="r:gz") as archive:
            training = [_batch(archive, f"data_batch_{number}.bin") for number in range(1, 6)]
            test = _batch(archive, "test_batch.bin")
    except (tarfile.TarError, OSError, EOFError, KeyError) as error:
        raise EnvironmentFault(f"the CIFAR-10 archive cannot be read: {error}; replace it") from error
    return _labelled(np.concatenate(training)), _labelled(test)


def _batch(archive: tarfile.TarFile, name: str) -> Pixels:
    member = archive.getmember(f"{_CIFAR_FOLDER}/{name}")
    stream = archive.extractfile(member) if member.isfile() and member.size == CIFAR_MEMBER else None
    if stream is None:
        raise EnvironmentFault(f"{name} of the CIFAR-10 archive does not hold {CIFAR_MEMBER:,} bytes; replace it")
    return np.frombuffer(stream.read(CIFAR_MEMBER), np.uint8).reshape(-1, CIFAR_RECORD)


def _labelled(records: Pixels) -> Images:
    return _stored(records[:, 0], records[:, 1:])


# CIFAR-10 as JPEG


def read_jpeg_archive(contents: list[bytes]) -> tuple[Images, Images]:
    """Read an .npz of JPEG files: `blob` holds them end to end, `offset` (n + 1) where each begins, `label` (n,)
    their classes, `split` (n,) 0 for training and 1 for test. Images are decoded when they are chosen."""
    try:
        with np.load(io.BytesIO(contents[0]), allow_pickle=False) as archive:
            blob, offset, label, split = (archive[name] for name in ("blob", "offset", "label", "split"))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise EnvironmentFault(f"the JPEG archive cannot be read: {error}; replace it") from error
    ends = offset.astype(np.int64)
    if not (
        blob.dtype == label.dtype == split.dtype == np.uint8
        and len(ends) == len(label) + 1 == len(split) + 1
        and ends[0] == 0
        and ends[-1] == len(blob)
        and (np.diff(ends) > 0).all()
    ):
        raise EnvironmentFault("the arrays of the JPEG archive do not fit together; replace it")
    return _encoded(blob, ends, label, split, 0), _encoded(blob, ends, label, split, 1)


def _encoded(blob: Pixels, ends: NDArray[np.int64], label: Pixels, split: Pixels, half: int) -> Images:
    members = np.flatnonzero(split == half)

    def decoded(rows: NDArray[np.intp]) -> Pixels:
        files = (blob[ends[member] : ends[member + 1]].tobytes() for member in members[rows])
        return np.stack([decode_jpeg(file, (3, 32, 32)) for file in files])

    return Images(label[members], decoded)


def decode_jpeg(content: bytes, image: tuple[int, int, int]) -> Pixels:
    """Return the pixels of one JPEG file of shape `image`, flattened channel after channel."""
    try:
        from PIL import Image, UnidentifiedImageError  # only these images need it
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"JPEG images need Pillow, which is missing ({error}); install it: {pip_install('sim')}"
        ) from error
    channels, height, width = image
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as opened:
            if opened.size != (width, height) or opened.mode != "RGB" or channels != 3:
                raise EnvironmentFault(
                    f"a JPEG image is {opened.mode} of {opened.width} x {opened.height} pixels instead of "
                    f"RGB of {width} x {height}; replace its file"
                )
            pixels = np.asarray(opened)  # decodes, after the size has been checked
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise EnvironmentFault(f"a JPEG image cannot be decoded: {error}; replace its file") from error
    return pixels.transpose(2, 0, 1).reshape(-1)

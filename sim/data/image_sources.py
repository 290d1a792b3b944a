"""The table of image datasets: where their files live, which bytes are the right ones, and who reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sim.data.image_files import Images, read_cifar_archive, read_idx, read_jpeg_archive
from sim.data.sources import RawFile

DEBIAN_FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
_FASHION_MNIST_HOME = "https://github.com/zalandoresearch/fashion-mnist"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """One dataset of labelled images with a provided split.

    `read` makes (training images, test images) of the files' contents, in the order of `files`, which lie in
    `folder` of a data directory. `normals` are the classes that there are training images of, `tested` those of test
    images. `train_rows` and `test_rows` are what one pair of classes yields.
    """

    name: str
    title: str
    licence: str
    home: str
    folder: str
    files: tuple[RawFile, ...]
    image: tuple[int, int, int]
    read: Callable[[list[bytes]], tuple[Images, Images]]
    train_rows: int
    test_rows: int
    normals: frozenset[int] = frozenset(range(10))
    tested: frozenset[int] = frozenset(range(10))
    remark: str = ""

    @property
    def input_dim(self) -> int:
        """d_x, the length of a flattened image."""
        channels, height, width = self.image
        return channels * height * width


def _fashion_mnist_file(name: str, size: int, sha256: str) -> RawFile:
    url = f"{_FASHION_MNIST_HOME}/raw/master/data/fashion/{name}.gz"
    return RawFile(name, size, sha256, url=url, packed="gz", system=DEBIAN_FASHION_MNIST)


FASHION_MNIST = ImageSource(
    name="fashion_mnist",
    title="Fashion-MNIST",
    licence="MIT",
    home=_FASHION_MNIST_HOME,
    folder="fashion_mnist",
    files=(
        _fashion_mnist_file(
            "train-images-idx3-ubyte", 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        _fashion_mnist_file(
            "train-labels-idx1-ubyte", 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        _fashion_mnist_file(
            "t10k-images-idx3-ubyte", 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        _fashion_mnist_file(
            "t10k-labels-idx1-ubyte", 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    ),
    image=(1, 28, 28),
    read=read_idx,
    train_rows=6_000,
    test_rows=2_000,
    remark="the pair of classes follows from the seed; also found where Debian's dataset-fashion-mnist puts it",
)

CIFAR10 = ImageSource(
    name="cifar10",
    title="CIFAR-10",
    licence="none stated",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    folder="cifar10",
    files=(
        # The binary version: the one "for Python" is a pickle, which would run code of whoever made the file.
        RawFile(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        ),
    ),
    image=(3, 32, 32),
    read=read_cifar_archive,
    train_rows=5_000,
    test_rows=2_000,
    remark="the pair of classes follows from the seed; without this archive, cifar10_jpeg comes close",
)

CIFAR10_JPEG = ImageSource(
    name="cifar10_jpeg",
    title="CIFAR-10 (JPEG q75)",
    licence="none stated",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    folder="cifar10",
    files=(
        RawFile(
            "cifar10_pairs_jpeg.npz",
            19_288_971,
            "3f3be0544fb2b99504ecd012b3c9de6fef4a24202ca339c693cab6317374ffde",
        ),
    ),
    image=(3, 32, 32),
    read=read_jpeg_archive,
    train_rows=5_000,
    test_rows=2_000,
    normals=frozenset({0, 2, 9}),
    tested=frozenset({0, 2, 4, 5, 8, 9}),
    remark="CIFAR-10's images of the paper's three pairs after lossy compression: not the paper's data",
)

IMAGE_SOURCES: Final[dict[str, ImageSource]] = {
    source.name: source for source in (CIFAR10, CIFAR10_JPEG, FASHION_MNIST)
}

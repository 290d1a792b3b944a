"""The convolutional autoencoder of images: its layers, its parameters as one flat vector, what a step costs.

Encoder: one 3 x 3 convolution of stride 2 per entry of `hidden`, then one of stride 1 to the latent channels. The
decoder mirrors it with transposed convolutions, so that stride 2 doubles the sides. ReLU between layers; the latent
layer and the head are linear, as in the dense model; nothing is normalised. The paper gives the channels (128, 128,
16), the latent widths and the parameter counts; strides, kernels and transposition are what these leave.

Layout of the parameter vector, shared by Adam's moments and by the wire: layer after layer from input to head; for
each layer first its kernel in C order, shape (out, in, 3, 3) in the encoder and (in, out, 3, 3) in the decoder, then
its bias, shape (out,). The encoder's layers come first, so that "only the encoder moves" is a leading slice.

Nothing here needs torch; training is `edge_client.model.convolutional_trainer`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt

import numpy as np
from numpy.typing import DTypeLike

from edge_client.errors import ConfigError
from edge_client.model.autoencoder import FloatArray

KERNEL = 3


@dataclass(frozen=True, slots=True)
class ConvolutionalLayer:
    """One layer: channels in and out, the sides of what comes out, and how sides change.

    `transposed` layers belong to the decoder; `stride` halves the sides in the encoder and doubles them there.
    """

    inputs: int
    outputs: int
    height: int
    width: int
    stride: int
    transposed: bool

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """Shape of the kernel as torch keeps it."""
        channels = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        return (*channels, KERNEL, KERNEL)

    @property
    def parameters(self) -> int:
        """Length of the kernel and the bias."""
        return prod(self.kernel_shape) + self.outputs

    @property
    def multiplications(self) -> int:
        """Multiply-adds of one image, forward: the kernel once for every pixel of the smaller side."""
        area = self.height * self.width
        return prod(self.kernel_shape) * (area // self.stride**2 if self.transposed else area)


@dataclass(frozen=True, slots=True)
class ConvolutionalArchitecture:
    """An autoencoder of images (channels, height, width) with codes of `latent_dim` numbers.

    Raises ConfigError when sides cannot be halved so often, or the code is no whole number of channels.
    """

    image: tuple[int, int, int]
    hidden: tuple[int, ...] = (128, 128)
    latent_dim: int = 1024

    def __post_init__(self) -> None:
        if min(*self.image, *self.hidden, self.latent_dim) < 1:
            raise ConfigError(f"autoencoder: every layer needs a channel, image {self.image}, hidden {self.hidden}")
        _, height, width = self.image
        halvings = 2 ** len(self.hidden)
        if height % halvings or width % halvings:
            raise ConfigError(
                f"autoencoder: an image of {height} x {width} cannot be halved {len(self.hidden)} times; "
                "use fewer layers in hidden"
            )
        area = height * width // halvings**2
        if self.latent_dim % area:
            raise ConfigError(
                f"latent_dim: {self.latent_dim} is no whole number of {height // halvings} x {width // halvings} "
                f"channels; use a multiple of {area}, such as {16 * area} for the paper's 16 channels"
            )

    @property
    def input_dim(self) -> int:
        """d_x, the length of a flattened image."""
        return prod(self.image)

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the code before it is flattened to d_z."""
        _, height, width = self.image
        halvings = 2 ** len(self.hidden)
        sides = height // halvings, width // halvings
        return (self.latent_dim // prod(sides), *sides)

    @property
    def encoder(self) -> tuple[ConvolutionalLayer, ...]:
        """Layers from the image to the code."""
        channels, height, width = self.image
        layers = []
        for outputs in self.hidden:
            height, width = height // 2, width // 2
            layers.append(ConvolutionalLayer(channels, outputs, height, width, 2, False))
            channels = outputs
        return (*layers, ConvolutionalLayer(channels, self.latent_shape[0], height, width, 1, False))

    @property
    def decoder(self) -> tuple[ConvolutionalLayer, ...]:
        """Layers from the code to the image: the encoder's, backwards."""
        heights_and_widths = [(layer.height, layer.width) for layer in self.encoder[:-1]]
        sides = [self.image[1:], *heights_and_widths]
        return tuple(
            ConvolutionalLayer(layer.outputs, layer.inputs, *before, layer.stride, True)
            for layer, before in zip(reversed(self.encoder), reversed(sides), strict=True)
        )

    @property
    def layers(self) -> tuple[ConvolutionalLayer, ...]:
        """All layers in the order of the parameter vector."""
        return self.encoder + self.decoder

    @property
    def parameters(self) -> int:
        """P, length of the parameter vector; 339,219 for 3 x 32 x 32 and 334,609 for 1 x 28 x 28 (Table 11)."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def encoder_parameters(self) -> int:
        """Length of the leading block that holds the encoder."""
        return sum(layer.parameters for layer in self.encoder)

    @property
    def flops(self) -> float:
        """Arithmetic of one reconstruction step per image: 2 per multiply-add forward, 4 backward."""
        return 6.0 * sum(layer.multiplications for layer in self.layers)

    @property
    def encoder_flops(self) -> float:
        """Arithmetic of one alignment step per image, forward and backward."""
        return 6.0 * sum(layer.multiplications for layer in self.encoder)

    def slices(self) -> Iterator[tuple[ConvolutionalLayer, slice, slice]]:
        """Yield each layer with the places of its kernel and of its bias in the parameter vector."""
        ends = [0]
        for layer in self.layers:
            ends.extend((ends[-1] + prod(layer.kernel_shape), ends[-1] + layer.parameters))
        places = [slice(*ends_of) for ends_of in pairwise(ends)]
        yield from zip(self.layers, places[::2], places[1::2], strict=True)


def initial_parameters(
    arch: ConvolutionalArchitecture, rng: np.random.Generator, dtype: DTypeLike = np.float32
) -> FloatArray:
    """Draw kernels and biases from U(-1/sqrt(fan), 1/sqrt(fan)) as torch does; shape (P,).

    fan is 9 times the second axis of the kernel, which for a transposed convolution is the channels that come out.
    """
    flat = np.empty(arch.parameters, dtype)
    for layer, kernel, bias in arch.slices():
        bound = 1.0 / sqrt(prod(layer.kernel_shape[1:]))
        for place in (kernel, bias):
            flat[place] = rng.uniform(-bound, bound, place.stop - place.start)
    return flat

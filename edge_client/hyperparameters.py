"""What a device must know to take part in a study, in the paper's symbols; validated in one place.

The server sends these values to each device when it joins, so that a shelf of Raspberry Pis needs no
configuration of its own.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
Width = Annotated[int, Meta(ge=1, le=65_536)]
Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]
PositiveReal = Annotated[float, Meta(gt=0.0, le=1e9)]
CodecName = Literal["float32", "float16", "int8", "float32+zstd", "float16+zstd", "int8+zstd"]


class Hyperparameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Local training of one device. Defaults are the paper's (section "Experimental setup").

    `model` is the kind of autoencoder. "dense": `hidden` are the layers' widths on the way to the code.
    "convolutional": records are images of shape `image` = (channels, height, width), `hidden` are the channels of
    convolutions that halve both sides, and `latent_dim` is the width of the flattened code.
    GCA runs `recon_epochs` and `align_epochs` in a round, every other method `local_epochs` on the reconstruction loss.
    `proximal_mu` is FedProx's coefficient of ||theta - theta_r||^2: the paper configures 1e-2, of which 1e-4 is
    effective. `init` says whether all devices start from one seeded model ("shared") or each from its own.
    `optimizer` says whether Adam's moments live on between phases and rounds ("kept") or start at zero with
    each local phase ("reset"); the paper leaves it open. `upload_codec` and `broadcast_codec` say how arrays travel
    (`edge_client/codecs`): "float32", "float16" or "int8", each also with "+zstd".
    What GCA's devices do to their codes before they go up (`edge_client/methods/defences.py`): they cut each to the
    length `code_clip`, add noise of standard deviation `code_noise` times that length, and turn them by a secret
    rotation of the round (`code_rotation`).
    """

    model: Literal["dense", "convolutional"] = "dense"
    image: tuple[Width, Width, Width] | None = None
    hidden: Annotated[tuple[Width, ...], Meta(max_length=8)] = (256, 64)
    latent_dim: Width = 16
    batch_size: Positive = 50
    learning_rate: PositiveReal = 1e-3
    lr_step_epochs: Positive = 1000
    lr_decay: Fraction = 0.1
    recon_epochs: Annotated[int, Meta(ge=0, le=10_000)] = 5
    align_epochs: Annotated[int, Meta(ge=0, le=10_000)] = 5
    local_epochs: Positive = 10
    proximal_mu: Annotated[float, Meta(ge=0.0, le=1e9)] = 1e-4
    upload_fraction: Fraction = 0.1
    gamma: Annotated[float, Meta(ge=0.0, le=10.0)] = 1.0
    max_weight: PositiveReal = 6.0
    epsilon: PositiveReal = 1e-6
    weighting: Literal["inverse", "uniform"] = "inverse"
    threshold_quantile: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.75
    init: Literal["shared", "independent"] = "shared"
    optimizer: Literal["kept", "reset"] = "kept"
    upload_codec: CodecName = "float32"
    broadcast_codec: CodecName = "float32"
    code_clip: PositiveReal | None = None
    code_noise: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0
    code_rotation: bool = False

"""Which model the server asks for, and which trainer a device uses for it."""

import os
from dataclasses import dataclass

from edge_client.errors import ConfigError, EnvironmentFault, pip_install
from edge_client.hyperparameters import Hyperparameters
from edge_client.kernel import library
from edge_client.model.autoencoder import Architecture
from edge_client.model.compiled import CompiledTrainer
from edge_client.model.convolutional import ConvolutionalArchitecture
from edge_client.model.trainer import NumpyTrainer, Trainer
from edge_client.words import counted

NUMPY = "numpy"


@dataclass(frozen=True)
class Engine:
    """What trains dense models here: an instruction set of the compiled kernel, or "numpy"; and why, in words."""

    name: str
    why: str

    def __str__(self) -> str:
        if self.name == NUMPY:
            return f"numpy trainer, two to four times as slow as the compiled kernel; {self.why}"
        return f"compiled kernel, {self.name}; {self.why}"


def dense_engine() -> Engine:
    """Return the fastest engine of this machine, or the one that the environment variable GCA_KERNEL names.

    Raises `ConfigError` when that one is not to be had.
    """
    available, forced = library.paths(), os.environ.get("GCA_KERNEL")
    if forced:
        if forced not in (*available, NUMPY):
            raise ConfigError(f"GCA_KERNEL: no {forced} here; use one of {', '.join((*available, NUMPY))}")
        return Engine(forced, "GCA_KERNEL asks for it")
    if not available:
        return Engine(NUMPY, f"kernel {library.load()}")
    return Engine(available[0], "the best this processor runs")


def architecture_for(hyper: Hyperparameters, input_dim: int) -> Architecture | ConvolutionalArchitecture:
    """Return the model for records of `input_dim` features; raises `ConfigError` if there is none."""
    if hyper.model == "dense":
        return Architecture(input_dim, hyper.hidden, hyper.latent_dim)
    if hyper.image is None:
        raise ConfigError("training.image: is missing; a convolutional model needs [channels, height, width]")
    architecture = ConvolutionalArchitecture(hyper.image, hyper.hidden, hyper.latent_dim)
    if architecture.input_dim != input_dim:
        raise ConfigError(
            f"training.image: {list(hyper.image)} makes {counted(architecture.input_dim, 'feature')}, records have "
            f'{input_dim:,}; name the shape of this dataset\'s images, or set training.model = "dense"'
        )
    return architecture


def trainer_for(hyper: Hyperparameters, input_dim: int) -> Trainer:
    """Return the trainer of a model for records of `input_dim` features.

    Raises `ConfigError` if no model fits, `EnvironmentFault` if the convolutional one has no torch to run on.
    """
    architecture = architecture_for(hyper, input_dim)
    if isinstance(architecture, Architecture):
        engine = dense_engine()
        return NumpyTrainer(architecture) if engine.name == NUMPY else CompiledTrainer(architecture, engine.name)
    try:
        from edge_client.model.convolutional_trainer import ConvolutionalTrainer  # torch: only where images are learned
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"a convolutional model needs torch ({error}); install it: {pip_install('server')}"
        ) from error
    return ConvolutionalTrainer(architecture)

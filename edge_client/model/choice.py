"""Which trainer a device uses for the model that the server asks for."""

from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import Architecture
from edge_client.model.trainer import NumpyTrainer, Trainer


def trainer_for(hyper: Hyperparameters, input_dim: int) -> Trainer:
    """Return the trainer of a model for records of `input_dim` features; raises `ConfigError` if none fits."""
    return NumpyTrainer(Architecture(input_dim, hyper.hidden, hyper.latent_dim))

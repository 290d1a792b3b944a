"""What the peers' clients compute: data, model, loss and judgement, as a PyTorch user writes them.

Runs in a peer's own virtual environment, which has no `gca`. `path` is the .npz file that `benchmarks/peers.py` wrote.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

BATCH, EPOCHS, RATE, QUANTILE = 50, 10, 1e-3, 0.75


@cache
def _array(path: str, name: str) -> Tensor:
    return torch.from_numpy(np.load(path)[name])


def records(path: str, client: int) -> Tensor:
    """Return a client's own normal records (N, d_x)."""
    return _array(path, f"client{client}")


def test_set(path: str) -> tuple[Tensor, Tensor]:
    """Return the records (M, d_x) that all are judged on, and which of them are anomalies (M,)."""
    return _array(path, "test"), _array(path, "anomalous")


class Autoencoder(nn.Module):
    """d_x-256-64-16-64-256-d_x."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 16)
        )
        self.decoder = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))

    def errors(self, x: Tensor) -> Tensor:
        """Return each record's squared reconstruction error (N,)."""
        return (self(x) - x).square().sum(dim=1)

    def loss(self, x: Tensor) -> Tensor:
        """Return the mean error of a minibatch."""
        return self.errors(x).mean()


def initial(path: str, kind: type[Autoencoder] = Autoencoder) -> Autoencoder:
    """Return the model that every system of the comparison starts from."""
    net = kind(test_set(path)[0].shape[1])
    nn.utils.vector_to_parameters(_array(path, "initial"), net.parameters())
    return net


def train(net: Autoencoder, samples: Tensor) -> None:
    """Run the local epochs in place. Slices of a permutation: a DataLoader would take a seventh longer."""
    adam = torch.optim.Adam(net.parameters(), RATE)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(samples)).split(BATCH):
            adam.zero_grad()
            net.loss(samples[chosen]).backward()
            adam.step()


@torch.inference_mode()
def accuracy(net: Autoencoder, samples: Tensor, test: Tensor, anomalous: Tensor) -> float:
    """Return the share of test records judged rightly, the threshold being a quantile of the client's own errors."""
    tau = torch.quantile(net.errors(samples), QUANTILE)
    return float(((net.errors(test) > tau) == anomalous).float().mean())

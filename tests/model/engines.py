"""The trainers of the tabular autoencoder that this machine can run, and the same epochs written with torch."""

import numpy as np
import torch

from edge_client.kernel import library
from edge_client.model.compiled import CompiledTrainer
from edge_client.model.trainer import NumpyTrainer

ENGINES = ("numpy", *library.paths())


def trainer_on(engine, arch):
    return NumpyTrainer(arch) if engine == "numpy" else CompiledTrainer(arch, engine)


def vectors(state):
    return state.parameters, state.first_moment, state.second_moment


def relative_error(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


class TorchAutoencoder:
    """The same epochs written with torch.nn, its autograd and its Adam."""

    def __init__(self, arch, flat, *, batch, rate):
        self.batch = batch
        layers = []
        for layer, (weights, bias) in enumerate(zip(*arch.layers(flat), strict=True)):
            linear = torch.nn.Linear(*weights.shape, dtype=torch.from_numpy(weights).dtype)
            linear.weight.data = torch.from_numpy(weights.T.copy())
            linear.bias.data = torch.from_numpy(bias.copy())
            layers += [linear] if layer in arch.linear_layers else [linear, torch.nn.ReLU()]
        cut = 2 * arch.latent_layer + 1
        self.encoder, self.decoder = torch.nn.Sequential(*layers[:cut]), torch.nn.Sequential(*layers[cut:])
        self.adam = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], lr=rate)

    def tensors(self):
        for linear in [*self.encoder, *self.decoder]:
            if isinstance(linear, torch.nn.Linear):
                yield linear.weight.detach().numpy().T
                yield linear.bias.detach().numpy()

    def epoch(self, samples, order, loss):
        total = 0.0
        for start in range(0, len(order), self.batch):
            x = torch.from_numpy(samples[order[start : start + self.batch]])
            self.adam.zero_grad(set_to_none=True)
            data, penalty = loss(x)
            (data + penalty).backward()
            self.adam.step()
            total += data.item() * len(x)
        return total / len(order)

    def reconstruct(self, samples, order, proximal):
        def loss(x):
            data = (self.decoder(self.encoder(x)) - x).square().sum(dim=1).mean()
            if proximal is None:
                return data, 0.0
            mu, anchor = proximal
            parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
            return data, mu * sum((p - a).square().sum() for p, a in zip(parameters, anchor, strict=True))

        return self.epoch(samples, order, loss)

    def align(self, samples, order, centroids, weights):
        mu, w = torch.from_numpy(centroids), torch.from_numpy(weights)

        def loss(x):
            z = self.encoder(x)
            nearest = (z.detach()[:, None] - mu[None]).square().sum(dim=2).argmin(dim=1)
            return (w[nearest] * (z - mu[nearest]).square().sum(dim=1)).mean(), 0.0

        return self.epoch(samples, order, loss)

    def flat(self):
        return np.concatenate([tensor.ravel() for tensor in self.tensors()])

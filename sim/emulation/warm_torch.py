"""Imported by the fork server before it forks devices that train on images: torch, and its first steps taken once.

A first step imports and allocates as much again as torch's import does. What the fork server has done already, its
children share; left to them, it would be 125 MB and a second for each. On the CPU, whatever the device will use: a
GPU that was touched before a fork is lost to the children.
"""

import numpy as np
import torch

from edge_client.model.convolutional import ConvolutionalArchitecture
from edge_client.model.convolutional_trainer import ConvolutionalTrainer

_trainer = ConvolutionalTrainer(ConvolutionalArchitecture((1, 4, 4), (1, 1), 1), torch.device("cpu"))
_samples = np.zeros((1, 16), np.float32)
_trainer.reconstruct(
    _trainer.initial(np.random.default_rng(0)),
    _samples,
    np.zeros((2, 1), np.int64),
    batch_size=1,
    learning_rates=np.full(2, 1e-3),
)

"""FedAvg on pfl-research: python pfl_run.py WORKLOAD ROUNDS; the last line is a JSON object.

Set up as its tutorials do: a user is a `Dataset`, cut into minibatches once; every user is judged before and after
its local training, which is what `evaluation_frequency = 1` means there.
"""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from learning import BATCH, EPOCHS, RATE, Autoencoder, accuracy, initial, records, test_set
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

CLIENTS = 10


class Judged(Autoencoder):
    """With `loss` and `metrics`, pfl's two calls."""

    def metrics(self, samples: Tensor, test: Tensor, anomalous: Tensor) -> dict[str, Weighted]:
        """Judge the model for the user who holds `samples`."""
        return {"accuracy": Weighted.from_unweighted(accuracy(self, samples, test, anomalous))}


def main() -> None:
    path, rounds = sys.argv[1], int(sys.argv[2])
    np.random.seed(100)  # all workers must sample the same users
    net = initial(path, Judged)
    test, anomalous = test_set(path)
    model = PyTorchModel(net, torch.optim.Adam, torch.optim.SGD(net.parameters(), lr=1.0))
    users = {
        user: Dataset((records(path, user),), user_id=str(user), eval_kwargs={"test": test, "anomalous": anomalous})
        for user in range(CLIENTS)
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    began = time.monotonic()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=1, train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=EPOCHS, local_learning_rate=RATE),
        NNEvalHyperParams(local_batch_size=None),
    )
    took = time.monotonic() - began
    found = [accuracy(net, records(path, user), test, anomalous) for user in users]
    versions = " ".join(f"{name} {version(name)}" for name in ("pfl", "torch"))
    print(json.dumps({"rounds_s": took, "accuracy": float(np.mean(found)), "versions": versions}))


if __name__ == "__main__":
    main()

"""Where a clustering runs: the CPU, or CUDA where it is likely to win."""

import torch

from broker_server.clustering.spec import ClusteringSpec
from edge_client.errors import EnvironmentFault

CUDA_MIN_PRODUCTS = 2e7
"""With `device = "auto"`, CUDA is used from this many multiply-adds per iteration on.

Estimated from data sheets (kernel launches against CPU throughput), not measured: where there is a CUDA device,
`benchmarks/clustering.py` prints the value to set.
"""


def products(spec: ClusteringSpec, rows: int, width: int, components: int) -> float:
    """Return the multiply-adds of one iteration's larger matrix product, over all restarts."""
    features = width
    if spec.algorithm == "gmm":
        features = width * (width + 1) // 2 + width + 1 if spec.covariance == "full" else 2 * width + 1
    return float(rows) * components * spec.initialisations * features


def place(spec: ClusteringSpec, rows: int, width: int, components: int) -> tuple[torch.device, str]:
    """Return the device, and a note if the settings asked for more than there is.

    Raises EnvironmentFault if "cuda" is asked for and absent.
    """
    present = torch.cuda.is_available()
    if spec.device == "cuda":
        if not present:
            raise EnvironmentFault(
                "clustering: device 'cuda' was asked for and torch finds none; use device 'auto' or 'cpu', "
                "or install a CUDA build of torch and its driver"
            )
        return torch.device("cuda"), ""
    if spec.device == "cpu" or products(spec, rows, width, components) < CUDA_MIN_PRODUCTS:
        return torch.device("cpu"), ""
    if not present:
        return torch.device("cpu"), "auto: large enough for CUDA, but torch finds no CUDA device"
    return torch.device("cuda"), ""

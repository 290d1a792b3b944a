"""Clustering beside scikit-learn: speed, floor, memory and warm starts. Figures on a busy machine are ratios only.

    nice python benchmarks/clustering.py            # all, about 5 minutes
    nice python benchmarks/clustering.py --quick    # fewer repetitions

Both sides run in float64 from the same start, in turns, pinned to the same number of threads; the best of the turns
counts. The time of one EM iteration is the difference of a long and a short fit, divided by the iterations between
them, so that neither side's set-up counts. Where there is a CUDA device the same sizes run on it, and the last lines
say what `CUDA_MIN_PRODUCTS` in `broker_server/clustering/placement.py` should be.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from broker_server.clustering import Clustering, ClusteringSpec, cluster, mixture
from broker_server.clustering.gaussians import Diagonal, Full
from broker_server.clustering.placement import CUDA_MIN_PRODUCTS

Rows = NDArray[np.float64]
SHORT, LONG = 1, 21
FULL_SIZES = [(390, 10), (3960, 40), (28_350, 20), (28_350, 80)]
TARGETS = {(28_350, 20): 2.5, (28_350, 80): 3.8}
RESTARTS, RESTART_ITERATIONS = 100, 20
MEMORY_SIZES = [(28_350, 1.0), (1_000_000, 2.0)]


def pool(count: int, width: int, clusters: int, seed: int = 0, drift: float = 0.0) -> Rows:
    """Return (count, width) overlapping clusters whose means are `drift` standard deviations from those of drift 0."""
    draws = np.random.default_rng(seed)
    means = 2.0 * draws.standard_normal((clusters, width)) + drift * draws.standard_normal((clusters, width))
    return means[draws.integers(clusters, size=count)] + draws.standard_normal((count, width))


class GivenStart(GaussianMixture):
    """scikit-learn's mixture, started from hard labels."""

    def _initialize_parameters(self, X: Rows, random_state: object, xp: object = None) -> None:
        self._initialize(X, np.eye(self.n_components)[self.start_labels])


def theirs(rows: Rows, labels: NDArray[np.int64], covariance: str, iterations: int) -> float:
    """Return scikit-learn's seconds for `iterations` EM iterations."""
    model = GivenStart(
        int(labels.max()) + 1,
        covariance_type=covariance,
        reg_covar=1e-6 if covariance == "full" else 0.1,
        tol=0.0,
        max_iter=iterations,
    )
    model.start_labels = labels
    return seconds(lambda: model.fit(rows))


def ours(rows: Rows, labels: NDArray[np.int64], covariance: str, iterations: int, device: str = "cpu") -> float:
    """Return our seconds for `iterations` EM iterations of all restarts in `labels` (R, n)."""
    tensor = torch.from_numpy(rows).to(device)
    starts = torch.from_numpy(np.atleast_2d(labels)).to(device)
    width, restarts = rows.shape[1], len(starts)

    def fit() -> None:
        family = Full(width, 1e-6, tensor.device) if covariance == "full" else Diagonal(width, 0.1)
        sweep = mixture.Sweep(tensor, family, restarts * (int(labels.max()) + 1))
        # A tolerance below zero is never met, so every restart runs to the end.
        mixture.fit(sweep, sweep.start(starts), restarts, iterations, -1.0)
        if tensor.is_cuda:
            torch.cuda.synchronize()

    with torch.inference_mode():
        return seconds(fit)


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def labels_of(rows: Rows, components: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the labels of a short K-means: a common start."""
    return KMeans(components, n_init=1, max_iter=3, random_state=seed).fit(rows).labels_.astype(np.int64)


def multiply_rate() -> float:
    """Return float64 multiply-adds per second of a large matrix product here and now."""
    a, b = torch.rand(512, 512, dtype=torch.float64), torch.rand(512, 4096, dtype=torch.float64)
    out = torch.empty(512, 4096, dtype=torch.float64)
    return 512 * 512 * 4096 / min(seconds(lambda: torch.mm(a, b, out=out)) for _ in range(8))


def floor(count: int, width: int, components: int) -> tuple[float, float]:
    """Return multiply-adds and bytes of one full-covariance iteration: two products with the features, which are
    read twice while the responsibilities are written once and read once."""
    features = width * (width + 1) // 2 + width + 1
    return 2.0 * count * features * components, 8.0 * count * (2 * features + 2 * components)


def iterations_table(threads: int, turns: int, sizes: list[tuple[int, int]]) -> None:
    """Print the time of a full-covariance EM iteration per size."""
    print(f"\nFull covariance, d = 16, float64, {threads} thread(s): ms per EM iteration")
    print("      n   K   scikit-learn     ours   ratio   target     Mmul-adds    MB   floor (products alone)")
    for count, components in sizes:
        rows = pool(count, 16, 30)
        labels = labels_of(rows, components)
        best = dict.fromkeys(("theirs short", "theirs long", "ours short", "ours long"), np.inf)
        rate = 0.0
        for _ in range(turns):
            for name, work in (("theirs", theirs), ("ours", ours)):
                for length, iterations in (("short", SHORT), ("long", LONG)):
                    key = f"{name} {length}"
                    best[key] = min(best[key], work(rows, labels, "full", iterations))
            rate = max(rate, multiply_rate())
        step = {name: (best[f"{name} long"] - best[f"{name} short"]) / (LONG - SHORT) for name in ("theirs", "ours")}
        products, traffic = floor(count, 16, components)
        target = TARGETS.get((count, components)) if threads == 1 else None
        print(
            f"{count:7d} {components:3d} {1e3 * step['theirs']:14.2f} {1e3 * step['ours']:8.2f} "
            f"{step['theirs'] / step['ours']:7.2f} {verdict(step['theirs'] / step['ours'], target):>8} "
            f"{products / 1e6:13.1f} {traffic / 1e6:5.0f} {1e3 * products / rate:8.2f}"
        )


def verdict(ratio: float, target: float | None) -> str:
    """Return the target and whether it is met."""
    return "" if target is None else f"{target} {'ok' if ratio >= target else 'MISSED'}"


def restarts_table(threads: int, turns: int, target: float | None) -> None:
    """Print the time of 100 diagonal restarts of 20 iterations each."""
    rows = pool(600, 784, 30)
    labels = np.stack([labels_of(rows, 10, seed) for seed in range(RESTARTS)])
    mine = yours = np.inf
    for _ in range(turns):
        yours = min(yours, sum(theirs(rows, start, "diag", RESTART_ITERATIONS) for start in labels))
        mine = min(mine, ours(rows, labels, "diag", RESTART_ITERATIONS))
    print(f"\nDiagonal, 600 x 784, K = 10, {RESTARTS} restarts x {RESTART_ITERATIONS} iterations, {threads} thread(s):")
    print(f"  scikit-learn {yours:.2f} s, ours {mine:.2f} s, ratio {yours / mine:.2f} {verdict(yours / mine, target)}")


def memory() -> None:
    """Print the peak memory of whole clusterings, each in a process of its own."""
    print("\nWhole `cluster()` of n x 16, K = 80, full covariance, one thread, peak resident memory (torch included):")
    for count, bound in MEMORY_SIZES:
        done = subprocess.run(
            [sys.executable, __file__, "--child", str(count)], check=True, capture_output=True, text=True
        )
        elapsed, peak, iterations, converged = done.stdout.split()
        print(
            f"  n = {count:9,d}: {float(elapsed):6.1f} s, {iterations} iterations, converged {converged}; "
            f"{float(peak):.2f} GB, bound {bound} GB {'ok' if float(peak) <= bound else 'MISSED'}"
        )


def child(count: int) -> None:
    """Cluster `count` codes and print seconds, peak GB, iterations and convergence."""
    import resource

    torch.set_num_threads(1)
    codes = pool(count, 16, 200).astype(np.float32)
    begin = time.perf_counter()
    facts = cluster(codes, ClusteringSpec.tabular("gmm", 80), 0).diagnostics
    elapsed = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(elapsed, peak, facts.iterations, facts.converged)


def warm_starts() -> None:
    """Print what the previous round's centroids save and cost, for pools whose cluster means drift."""
    print(
        "\nWarm start, 3,960 x 16, K = 20: iterations, seconds, and quality of the second round's fit, mean of 5 seeds"
    )
    print("drift (sd)  algorithm   iterations cold/warm   seconds cold/warm   quality cold/warm")
    for drift in (0.02, 0.2, 1.0):
        for algorithm in ("gmm", "kmeans"):
            rounds = [_warm_round(algorithm, drift, seed) for seed in range(5)]
            cold, warm = (np.mean([r[side] for r in rounds], axis=0) for side in (0, 1))
            unit = "nats per code" if algorithm == "gmm" else "inertia"
            print(
                f"{drift:10.2f}  {algorithm:9s} {cold[0]:12.1f} / {warm[0]:5.1f} {cold[1]:13.3f} / {warm[1]:5.3f} "
                f"{cold[2]:12.4f} / {warm[2]:.4f} {unit}"
            )


def _warm_round(algorithm: str, drift: float, seed: int) -> tuple[list[float], list[float]]:
    """Return (iterations, seconds, quality) of a cold and of a warm fit after one round of drift."""
    spec = ClusteringSpec.tabular(algorithm, 20)  # type: ignore[arg-type]
    previous = cluster(pool(3960, 16, 30, seed).astype(np.float32), spec, seed)
    codes = pool(3960, 16, 30, seed, drift).astype(np.float32)

    def measured(centroids: NDArray[np.float32] | None) -> list[float]:
        found: list[Clustering] = []
        took = seconds(lambda: found.append(cluster(codes, spec, seed + 100, initial_centroids=centroids)))
        facts = found[0].diagnostics
        quality = facts.log_likelihood if algorithm == "gmm" else facts.inertia
        assert quality is not None
        return [float(facts.iterations), took, quality]

    return measured(None), measured(previous.centroids)


def cuda(turns: int) -> None:
    """Print the sizes on the CPU and on CUDA, and the size from which CUDA wins."""
    if not torch.cuda.is_available():
        print(
            f"\nNo CUDA device: CUDA_MIN_PRODUCTS = {CUDA_MIN_PRODUCTS:g} stays an estimate. "
            "Run this where there is one."
        )
        return
    print(f"\nCPU ({torch.get_num_threads()} threads) against {torch.cuda.get_device_name()}: ms per EM iteration")
    wins = np.inf
    for count in (28_350, 14_000, 7_000, 3_960, 1_410, 390, 100):
        rows = pool(count, 16, 30)
        labels = labels_of(rows, 20)
        step = {}
        for device in ("cpu", "cuda"):
            ours(rows, labels, "full", SHORT, device)
            runs = {n: min(ours(rows, labels, "full", n, device) for _ in range(turns)) for n in (SHORT, LONG)}
            step[device] = (runs[LONG] - runs[SHORT]) / (LONG - SHORT)
        products = count * 153 * 20
        wins = products if step["cuda"] < step["cpu"] else wins
        print(f"{count:7d} x 16, K = 20 ({products:9.2e} products): {1e3 * step['cpu']:8.2f} {1e3 * step['cuda']:8.2f}")
        if step["cuda"] >= step["cpu"]:
            break
    spec = msgspec.structs.replace(ClusteringSpec.tabular("gmm", 80), device="cuda")
    codes = pool(28_350, 16, 30).astype(np.float32)
    on_cuda, again = cluster(codes, spec, 0), cluster(codes, spec, 0)
    repeats = on_cuda.centroids.tobytes() == again.centroids.tobytes()
    print(f"Same bits twice on CUDA: {repeats}. Set CUDA_MIN_PRODUCTS to {wins:g}.")


def main() -> None:
    """Run every table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="two turns instead of four")
    arguments.add_argument("--child", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if chosen.child:
        child(chosen.child)
        return
    turns = 2 if chosen.quick else 4
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with threadpool_limits(threads):
            sizes = FULL_SIZES if threads == 1 else FULL_SIZES[2:]
            iterations_table(threads, turns, sizes)
            restarts_table(threads, 2 if threads == 1 else 1, 2.5 if threads == 1 else None)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        warm_starts()
        memory()
    cuda(turns)


if __name__ == "__main__":
    main()

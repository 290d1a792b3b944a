"""Mini-batch K-means for pools too large for full passes.

Sculley, "Web-scale k-means clustering", WWW 2010, algorithm 1: each centroid moves to the running mean of all codes
it has been given so far. Here the seeds are the best of several restarts on a sample, batches are slices of a fresh
permutation per epoch, and one full pass of K-means ends it, so that labels, supports and centroids agree and no
cluster stays empty.
"""

from dataclasses import replace

import torch

from broker_server.clustering.kmeans import best, lloyd, movement_limit, nearest
from broker_server.clustering.problem import Fit, Problem, squared_distances
from broker_server.clustering.seeding import seeds
from edge_client.seeds import stream

SAMPLE_BATCHES = 3
"""Size of the sample that seeds are drawn from, in batches."""


def minibatch_kmeans(problem: Problem) -> Fit:
    """Return the clusters after at most `max_iterations` steps, or once a whole epoch moved them too little."""
    spec, rows = problem.spec, problem.rows
    draws = stream(problem.seed, "minibatch")
    means = _seeded(problem, torch.from_numpy(draws.permutation(len(rows))).to(rows.device))
    limit = movement_limit(problem, spec.tolerance)
    counts = rows.new_zeros(len(means), 1)
    step, converged = 0, False
    while step < spec.max_iterations and not converged:
        moved = 0.0
        order = torch.from_numpy(draws.permutation(len(rows))).to(rows.device)
        for index in torch.split(order, spec.batch_size)[: spec.max_iterations - step]:
            batch = rows[index]
            member = torch.nn.functional.one_hot(nearest(batch, means), len(means)).to(rows.dtype)
            added = member.sum(0)[:, None]
            counts += added
            shift = (member.T @ batch - added * means) / counts.clamp(min=1.0)
            means = means + shift
            moved += float(shift.square().sum())
            step += 1
        converged = moved <= limit
    found = best(problem, lloyd(rows, means[None], 1, limit))
    return replace(found, iterations=step, converged=converged)


def _seeded(problem: Problem, order: torch.Tensor) -> torch.Tensor:
    """Return (K, d): the seeds, of all restarts, that fit a sample of the rows best."""
    sample = problem
    picked = order[: SAMPLE_BATCHES * problem.spec.batch_size]
    if len(picked) < len(problem.rows):
        picked = picked.sort().values
        groups = torch.unique(problem.groups[picked], return_inverse=True)[1]
        if int(groups.max()) + 1 >= problem.components:
            sample = replace(problem, rows=problem.rows[picked], groups=groups)
    warm = problem.start is not None and len(problem.start) >= problem.components
    drawn = seeds(sample, 1 if warm else problem.spec.initialisations)
    inertia = torch.stack([squared_distances(sample.rows, m, nearest(sample.rows, m)).sum() for m in drawn])
    return drawn[inertia.argmin()]

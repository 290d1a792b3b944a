"""Global Centroid Alignment, the server half: phase 2 of Algorithm 1 (lines 20 to 24)."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from broker_server.clustering import ClusteringSpec, cluster
from broker_server.clustering.spec import Diagnostics
from broker_server.methods.base import Aggregate, Sender, Upload
from edge_client.errors import ProtocolError
from edge_client.methods.gca import upload_size
from edge_client.protocol.codec import Arrays
from edge_client.seeds import digest

FP32 = 4


@dataclass(frozen=True)
class GcaServer:
    """Pools the uploaded codes Z, clusters them and publishes centroids mu_k with their support N_k.

    With `warm_start` a round's clustering begins from the centroids of the round before instead of seeds of its own.
    """

    latent_dim: int
    upload_fraction: float
    clustering: ClusteringSpec
    seed: int
    warm_start: bool = False
    broadcasts_to_all: bool = False

    def upload_limit(self, sender: Sender) -> int:
        return upload_size(self.upload_fraction, sender.samples) * self.latent_dim * FP32

    def check(self, sender: Sender, upload: Arrays) -> None:
        """Codes are (L, d_z) finite float32 with 1 <= L <= floor(rho N)."""
        if set(upload) != {"latents"}:
            raise ProtocolError(f"an upload holds 'latents' alone, not {sorted(upload)}"[:200])
        latents, most = upload["latents"], upload_size(self.upload_fraction, sender.samples)
        if latents.dtype != np.float32 or latents.ndim != 2 or latents.shape[1] != self.latent_dim:
            raise ProtocolError(f"latents must be float32 (L, {self.latent_dim}), are {latents.dtype}{latents.shape}")
        if not 1 <= len(latents) <= most:
            raise ProtocolError(f"{len(latents)} codes where 1 to {most} belong")
        if not np.isfinite(latents).all():
            raise ProtocolError("latents hold NaN or infinity")

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None = None) -> Aggregate:
        latents = [uploads[device].arrays["latents"] for device in sorted(uploads)]  # line 21: Z
        start = previous["centroids"] if self.warm_start and previous is not None else None
        seed = digest(self.seed, "clustering", round, size=6)
        found = cluster(latents, self.clustering, seed, initial_centroids=start)  # lines 22-23
        broadcast = {name: getattr(found, name).astype(np.float32) for name in ("centroids", "support")}  # line 24
        return Aggregate(broadcast, msgspec.to_builtins(found.diagnostics), _remarks(found.diagnostics))


def _remarks(diagnostics: Diagnostics) -> tuple[str, ...]:
    """Say what a reader of the results would want to have been told."""
    asked, fitted = diagnostics.requested_components, diagnostics.fitted_components
    remarks = [diagnostics.device_note] if diagnostics.device_note else []
    if fitted < asked:
        remarks.append(f"K reduced from {asked} to {fitted}: the pool has {diagnostics.distinct_rows} distinct codes")
    if any(diagnostics.dropped):
        remarks.append(f"{sum(diagnostics.dropped)} codes beyond the norm bound were dropped")
    return tuple(remarks)

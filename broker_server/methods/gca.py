"""Global Centroid Alignment, the server half: phase 2 of Algorithm 1 (lines 20 to 24)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker_server.clustering import Clustering, ClusteringSpec, cluster
from broker_server.clustering.spec import Diagnostics
from broker_server.methods.base import Aggregate, Sender, Upload
from broker_server.methods.geometric_median import device_medians
from edge_client.errors import GcaError, ProtocolError
from edge_client.methods.gca import upload_size
from edge_client.protocol.codec import FP32, Arrays
from edge_client.seeds import digest, stream
from edge_client.words import counted

Codes = NDArray[np.float32]


@dataclass(frozen=True)
class GcaServer:
    """Pools the uploaded codes Z, clusters them and publishes centroids mu_k with their support N_k.

    With `warm_start` a round's clustering begins from the centroids of the round before instead of seeds of its own.

    Three guards that the paper has not, off by default: `device_quota` is the most codes of one device that enter the
    pool, drawn by the seed, so that a device's weight does not grow with the number of records it claims; centroids
    backed by the codes of fewer than `minimum_devices` devices are not broadcast, so that no device alone places one;
    `centroid` "geometric_median" lets each device behind a cluster have one vote on where it lies. An upload with a
    code of an L2 norm over `norm_limit` is refused.
    """

    latent_dim: int
    upload_fraction: float
    clustering: ClusteringSpec
    seed: int
    warm_start: bool = False
    device_quota: int | None = None
    minimum_devices: int = 1
    centroid: Literal["mean", "geometric_median"] = "mean"
    norm_limit: float = 1e6
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
            raise ProtocolError(f"{counted(len(latents), 'code')} where 1 to {most} belong")
        if not np.isfinite(latents).all():
            raise ProtocolError("latents hold NaN or infinity")
        if (largest := float(np.sqrt(np.square(latents, dtype=np.float64).sum(axis=1)).max())) > self.norm_limit:
            raise ProtocolError(f"a code of norm {largest:.3g}, where {self.norm_limit:g} is the limit")

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None = None) -> Aggregate:
        latents = [self._within_quota(round, device, uploads[device]) for device in sorted(uploads)]  # line 21: Z
        start = previous["centroids"] if self.warm_start and previous is not None else None
        seed = digest(self.seed, "clustering", round, size=6)
        found = cluster(latents, self.clustering, seed, initial_centroids=start)  # lines 22-23
        backed = self._backed(found, [len(codes) for codes in latents])
        centroids = found.centroids if self.centroid == "mean" else _medians(found, latents)
        broadcast = {"centroids": centroids[backed].astype(np.float32),
                     "support": found.support[backed].astype(np.float32)}  # line 24  # fmt: skip
        diagnostics = msgspec.to_builtins(found.diagnostics) | {"unbacked_centroids": int((~backed).sum())}
        return Aggregate(broadcast, diagnostics, _remarks(found.diagnostics) + self._dropped(found, backed))

    def _within_quota(self, round: int, device: str, upload: Upload) -> Codes:
        """Return a device's codes, or as many of them as one device may bring, in their order."""
        codes: Codes = upload.arrays["latents"]
        if self.device_quota is None or len(codes) <= self.device_quota:
            return codes
        drawn = stream(self.seed, "quota", round, device).choice(len(codes), self.device_quota, replace=False)
        return codes[np.sort(drawn)]

    def _backed(self, found: Clustering, sizes: Sequence[int]) -> NDArray[np.bool_]:
        """Return which centroids (K',) enough devices stand behind, for devices that brought `sizes` codes each."""
        kept = np.subtract(sizes, found.diagnostics.dropped)  # codes that the pool left out have no label
        pairs = np.unique(np.column_stack((found.labels, np.repeat(np.arange(len(kept)), kept))), axis=0)
        backed: NDArray[np.bool_] = np.bincount(pairs[:, 0], minlength=len(found.support)) >= self.minimum_devices
        if self.minimum_devices <= 1:  # nothing was asked: a centroid that is nobody's nearest travels as well
            backed[:] = True
        if not backed.any():
            raise GcaError(
                f"none of {counted(len(backed), 'centroid')} has codes of {counted(self.minimum_devices, 'device')}; "
                "lower clustering.minimum_devices_per_centroid or clustering.components"
            )
        return backed

    def _dropped(self, found: Clustering, backed: NDArray[np.bool_]) -> tuple[str, ...]:
        """Say what was not broadcast."""
        if backed.all():
            return ()
        count, support = int((~backed).sum()), float(found.support[~backed].sum())
        return (
            f"{counted(count, 'centroid')} of fewer than {self.minimum_devices} devices dropped, support {support:g}",
        )


def _medians(found: Clustering, latents: Sequence[Codes]) -> NDArray[np.float64]:
    """Return the geometric median of the devices' means for each centroid (K', d)."""
    ends = np.cumsum([len(codes) for codes in latents])[:-1]
    kept = np.split(found.kept, ends)
    labels = np.split(found.labels, np.cumsum([int(part.sum()) for part in kept])[:-1])
    return device_medians([c[k].astype(np.float64) for c, k in zip(latents, kept, strict=True)], labels,
                          found.centroids)  # fmt: skip


def _remarks(diagnostics: Diagnostics) -> tuple[str, ...]:
    """Say what a reader of the results would want to have been told."""
    asked, fitted = diagnostics.requested_components, diagnostics.fitted_components
    remarks = [diagnostics.device_note] if diagnostics.device_note else []
    if fitted < asked:
        distinct = counted(diagnostics.distinct_rows, "distinct code")
        remarks.append(f"K reduced from {asked} to {fitted}: the pool has {distinct}")
    if any(diagnostics.dropped):
        remarks.append(f"{counted(sum(diagnostics.dropped), 'code')} beyond the norm bound dropped")
    return tuple(remarks)

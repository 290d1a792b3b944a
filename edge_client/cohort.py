"""Who takes part in a round: a draw that every device can check for itself from one 8-byte number.

Each device has a digest of (seed, "cohort", round, device); the m smallest take part (S_r, Algorithm 1 line 3).
The server publishes the m-th smallest, not a list of names.
"""

from collections.abc import Iterable
from math import ceil, floor

from edge_client.protocol.messages import Cohort
from edge_client.seeds import digest

EVERYONE = Cohort(below=b"\xff" * 8)


def ticket(seed: int, round: int, device: str) -> bytes:
    """Return a device's 8-byte draw for a round, big-endian so that bytes compare as numbers."""
    return digest(seed, "cohort", round, device, size=8).to_bytes(8, "big")


def takes_part(cohort: Cohort, seed: int, round: int, device: str) -> bool:
    return ticket(seed, round, device) <= cohort.below


def sizes(devices: int, fraction: float, over_selection: float = 1.0) -> tuple[int, int]:
    """Return how many uploads a round wants of so many devices, and how many of them it asks."""
    wanted = max(1, floor(fraction * devices + 1e-9))
    return wanted, min(devices, ceil(over_selection * wanted - 1e-9))


def draw(devices: Iterable[str], size: int, seed: int, round: int) -> tuple[Cohort, tuple[str, ...]]:
    """Return the cohort of the `size` devices with the smallest draws, and their names in order of name."""
    ranked = sorted((ticket(seed, round, device), device) for device in devices)
    chosen = ranked[:size]
    cohort = EVERYONE if len(chosen) == len(ranked) else Cohort(below=chosen[-1][0])
    return cohort, tuple(sorted(device for _, device in chosen))

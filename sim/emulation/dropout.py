"""Devices that go silent for a round: by lot, from the seed, the round and the name, so the same in every clock."""

from collections.abc import Callable

from edge_client.seeds import digest


def silences(seed: int, device: str, share: float) -> Callable[[int], bool]:
    """Return what says whether this device is silent in a round; it is in about `share` of them."""
    return lambda round: digest(seed, "dropout", round, device, size=6) / 2**48 < share

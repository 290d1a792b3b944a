"""The attack on parameter sharing: the server has the victim's autoencoder and inverts it (eq. 10 and 11)."""

from dataclasses import replace

from sim.attack.inversion import Inversion, Search, invert
from sim.attack.networks import halves
from sim.attack.seen import Floats, ReleasedModel


def attack(seen: ReleasedModel, starts: Floats, search: Search) -> Inversion:
    """Search for fixed points of the victim's own T, from `starts` (S, d_x); the model moves no further."""
    return invert(halves(seen.shape, seen.parameters), starts, replace(search, bounds=seen.shape.bounds))

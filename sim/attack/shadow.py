"""Beyond the paper: a server with public records of the same kind plays a device of its own.

The shadow trains on the public records and follows the broadcasts of the study, round by round, as any device does;
alignment draws its codes to the same centroids as the victim's. Its decoder, trained on pairs of its own codes and
records, is then a supervised inverse for the victim's codes. If it also begins at the weights that all devices began
at, its coordinates are theirs from the start.
"""

from collections.abc import Iterable

import torch

from edge_client.methods.base import Arrays
from edge_client.methods.context import LocalContext
from edge_client.methods.gca import alignment_phase, read_broadcast, reconstruction_phase
from edge_client.model.autoencoder import FloatArray
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState
from edge_client.seeds import stream
from sim.attack.networks import fresh_parameters, halves
from sim.attack.seen import Floats, UploadedCodes

NAME = "attack/shadow"


def attack(
    seen: UploadedCodes, broadcasts: Iterable[Arrays], public: Floats, seed: int, *, initial: FloatArray | None = None
) -> Floats:
    """Return a guess of the record behind each code, shape (M, d_x).

    `public` (N', d_x) are the attacker's records, one at least, `broadcasts` what the server itself sent,
    `initial` (P,) the weights the devices began at, None if the attacker does not know them.
    """
    shape, hyper = seen.shape, seen.shape.hyper
    state = ModelState.fresh(fresh_parameters(shape, stream(seed, NAME)) if initial is None else initial)

    def round_context(round: int) -> LocalContext:
        return LocalContext(
            hyper=hyper, trainer=trainer_for(hyper, shape.input_dim), samples=public, seed=seed, device=NAME,
            round=round, observe=lambda phase, epoch, state, loss: None, each_epoch=False,
        )  # fmt: skip

    last = 0
    for last, broadcast in enumerate(broadcasts, start=1):
        context = round_context(last)
        state = reconstruction_phase(state, context, epochs=hyper.recon_epochs)
        state = alignment_phase(state, context, *read_broadcast(broadcast, hyper.latent_dim))
    state = reconstruction_phase(state, round_context(last + 1), epochs=hyper.recon_epochs)
    with torch.no_grad():
        model = halves(shape, state.parameters)
        guesses: Floats = model.decode(torch.tensor(seen.codes, device=model.device)).cpu().numpy()
    return guesses

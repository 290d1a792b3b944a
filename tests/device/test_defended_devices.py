"""Defended devices in a federation: what they upload in another run, after a stop, and in another life of the server.

Nothing is trained (no epochs) and all records are drawn, in whatever order: what differs between uploads of a device is
what its defences do.
"""

from dataclasses import replace

import numpy as np
from attack.test_defences import HERE
from device.in_memory import PLAN, RECORDS, Federation
from msgspec.structs import replace as with_fields

from edge_client.methods.defences import rotation
from edge_client.model.choice import trainer_for
from edge_client.private_seeds import Secrets
from edge_client.protocol.chunks import Reassembly
from edge_client.protocol.codec import MAX_BODY, decode, decode_arrays
from edge_client.protocol.messages import Chunk

STILL = with_fields(PLAN.hyper, recon_epochs=0, align_epochs=0, upload_fraction=1.0)


async def uploads(incarnation: str, *, life: int = 0, **defences: object) -> dict[str, np.ndarray]:
    """Run one round of two devices that have the same secrets; return what each uploaded."""
    plan = replace(PLAN, incarnation=incarnation, life=life, devices=2, minimum_devices=2, rounds=1,
                   hyper=with_fields(STILL, **defences))  # fmt: skip
    federation = Federation(plan)
    real = federation.device
    federation.device = lambda name, **more: replace(real(name, **more), secrets=HERE)  # type: ignore[method-assign]
    outcome, _ = await federation.run("ab")
    assert outcome.completed
    bodies = {name: Reassembly(MAX_BODY) for name in "ab"}
    for seen in federation.broker.seen:
        if "/up/" in seen.topic:
            chunk = decode(seen.payload, Chunk)
            assert isinstance(chunk, Chunk)
            bodies[chunk.device].add(chunk)
    return {name: decode_arrays(body.body())["latents"] for name, body in bodies.items()}


def far(one: np.ndarray, other: np.ndarray) -> float:
    """The largest of the distances from each row of one to the nearest of the other."""
    return float(np.linalg.norm(one[:, None] - other[None], axis=2).min(axis=1).max())


async def test_uploads_of_two_runs_do_not_differ_by_their_codes_alone() -> None:
    """With clipping alone the second run of a device sends the codes of the first, and so does a later life of the
    server. With noise, drawn for one run and device, no row comes again, except in a later life."""
    clipped = [await uploads(run, life=life, code_clip=1e6) for run, life in (("0" * 8, 0), ("1" * 8, 0))]
    assert all(far(clipped[0][name], clipped[1][name]) < 1e-5 for name in "ab")
    noise = {"code_clip": 1.0, "code_noise": 1e3}
    runs = [await uploads(*key, **noise) for key in (("0" * 8,), ("1" * 8,))]
    later = await uploads("0" * 8, life=1, **noise)
    for name in "ab":
        assert far(runs[0][name], later[name]) == 0.0
        assert far(runs[0][name], runs[1][name]) > 50.0
    assert far(runs[0]["a"], runs[0]["b"]) > 50.0


async def test_all_devices_of_a_run_turn_alike_and_otherwise_in_the_next_run() -> None:
    plain = await uploads("0" * 8, code_clip=1e6)
    runs = {run: await uploads(run, code_rotation=True) for run in ("0" * 8, "1" * 8)}
    for run, turned in runs.items():
        secret = Secrets(b"", HERE.shared).of_run(f"tiny.{run}", "whoever").shared
        assert secret is not None
        Q = rotation(secret, 1, STILL.latent_dim)
        assert all(far(plain[name] @ Q.T, turned[name]) < 1e-4 for name in "ab")
        assert far(plain["a"], turned["a"]) > 1e-2
    assert far(runs["0" * 8]["a"], runs["1" * 8]["a"]) > 1e-2
    assert plain["a"].shape == (RECORDS, trainer_for(STILL, 5).latent_dim)

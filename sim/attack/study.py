"""Attack one device of a finished study, judge what comes out, and write it into the study."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from broker_server.records import AttackRecord
from broker_server.results import last_run
from broker_server.store import StudyStore
from edge_client.errors import ConfigError, GcaError
from edge_client.methods.context import initial_state
from edge_client.methods.gca import Gca
from sim.attack import latent_only, shadow, white_box
from sim.attack.inversion import Search
from sim.attack.linkage import link
from sim.attack.metrics import leakage, paired_ntmse
from sim.attack.seen import Floats
from sim.attack.starts import starting_points
from sim.attack.victim import (
    MOMENTS_LOST,
    REFERENCE_RECORDS,
    Bystanders,
    Victim,
    broadcasts,
    bystanders,
    final_model,
    load_victim,
    upload,
    uploaded_codes,
    uploaded_model,
)
from sim.payload import PARAMETER_SHARING

KNOWLEDGE = ("records", "initial-weights", "weights")
MODELS = ("final", "uploaded")


@dataclass(frozen=True)
class _Extraction:
    """An attack's outputs (S, d_x), which may hold rows that are not finite, and what else is to be written down."""

    attack: str
    outputs: Floats
    details: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def attack_study(
    directory: Path, *, victim: int = 1, starts: int = 100, steps: int = 1000, model: str = "final",
    knows: Collection[str] = (),
) -> AttackRecord:  # fmt: skip
    """Attack a device as its method allows, with the paper's settings by default; return what was written down.

    Parameter sharing is attacked through the device's `model`, which is the "final" one or what it "uploaded" in the
    last round; GCA through its codes alone. `knows` gives an attacker of GCA what the paper's has not: public
    "records", the "initial-weights", or both; "weights" are the victim's own, which no server of GCA has: a control
    that tells what it is worth to hide them. Raises ConfigError for an attack that the method does not allow,
    EnvironmentFault for a folder without a finished study or one that cannot be written to, GcaError when nothing can
    be judged.
    """
    if starts < 1:
        raise ConfigError(f"--starts {starts}: use 1 or more")
    for known in knows:
        if known not in KNOWLEDGE:
            raise ConfigError(f"--knows {known}: choose {' or '.join(KNOWLEDGE)}")
    if "weights" in knows and len(set(knows)) > 1:
        raise ConfigError("--knows weights: is a control of its own; leave the other --knows out")
    if model not in MODELS:
        raise ConfigError(f"--model {model}: choose {' or '.join(MODELS)}")
    search, target = Search(steps=steps), load_victim(directory, victim)
    others = bystanders(directory, target)
    with StudyStore.open(directory, writable=True) as store, _one_thread():
        if target.study.method in PARAMETER_SHARING:
            if knows:
                raise ConfigError(f"--knows: a server of {target.study.method} has the model already; leave it out")
            extraction = _from_model(directory, target, model, starts, search)
        else:
            if model != "final":
                raise ConfigError(f"--model {model}: devices of {target.study.method} upload no model")
            extraction = _from_codes(directory, target, others, starts, search, knows)
        record = _judged(target, others, extraction, starts, search, "+".join(sorted(set(knows))))
        store.record_attack(last_run(store).run, record)
    return record


def link_study(directory: Path, *, victim: int = 1) -> AttackRecord:
    """Tell how well one GCA device's codes can be linked across the two rounds that would follow the study's last.

    The last broadcast stands for that of the round between, in which the other devices would have a part.
    """
    target = load_victim(directory, victim)
    _require_codes(target)
    sent = broadcasts(directory)
    if not sent:
        raise ConfigError(f"{directory}: no broadcast in rounds/; linkage needs a study of at least one round")
    with StudyStore.open(directory, writable=True) as store, _one_thread():
        state, earlier, earlier_rows = upload(target, target.state, rounds_later=1)
        state = Gca().after_broadcast(state, target.context(1), sent[-1])
        _, later, later_rows = upload(target, state, rounds_later=2)
        found = link(earlier, earlier_rows, later, later_rows)
        details = {
            "common": found.common, "linked": found.linked, "chance": found.chance, "remarks": list(_restarted(target)),
        }  # fmt: skip
        record = AttackRecord(target.device, "linkage", "", 0, 0, None, None, details)
        store.record_attack(last_run(store).run, record)
    return record


def _from_model(directory: Path, victim: Victim, model: str, count: int, search: Search) -> _Extraction:
    points = starting_points(victim.shape, victim.study.seed, count)
    if model == "final":
        return _Extraction("white_box_final", white_box.attack(final_model(victim), points, search).outputs)
    outputs = white_box.attack(uploaded_model(directory, victim), points, search).outputs
    return _Extraction("white_box_uploaded", outputs, remarks=_restarted(victim))


def _from_codes(
    directory: Path, victim: Victim, others: Bystanders, count: int, search: Search, knows: Collection[str]
) -> _Extraction:
    _require_codes(victim)
    study, remarks = victim.study, _restarted(victim)
    points = starting_points(victim.shape, study.seed, count)
    if "weights" in knows:
        return _Extraction("white_box_final", white_box.attack(final_model(victim), points, search).outputs)
    initial = initial_state(victim.context(0)).parameters if "initial-weights" in knows else None
    seen, rows = uploaded_codes(victim)
    details: dict[str, Any] = {"codes": len(seen.codes)}
    if "records" in knows:
        guesses = shadow.attack(seen, broadcasts(directory), others.public, study.seed, initial=initial)
        details["public"] = len(others.public)
        details["paired_ntmse"] = paired_ntmse(victim.samples[rows], guesses, others.reference)
        return _Extraction("shadow", guesses[:count], details, remarks)
    found = latent_only.attack(seen, points, search, study.seed, initial=initial)
    return _Extraction("latent_only", found.outputs, details, remarks)


def _restarted(victim: Victim) -> tuple[str, ...]:
    """Say it where the epochs that a victim runs once more are not quite those it would have run."""
    return (MOMENTS_LOST,) if victim.study.training.optimizer == "kept" else ()


def _require_codes(victim: Victim) -> None:
    if victim.study.method != "gca":
        raise ConfigError(f"method {victim.study.method}: its devices upload no codes, so there are none to attack")


def _judged(
    victim: Victim, others: Bystanders, extraction: _Extraction, count: int, search: Search, knows: str
) -> AttackRecord:
    """Compare the outputs with the victim's records; say what was not as the paper has it."""
    remarks = list(extraction.remarks)
    if len(others.reference) < REFERENCE_RECORDS:
        remarks.append(f"a reference bank of {len(others.reference)}: the test set has no more normal records")
    outputs = extraction.outputs[np.isfinite(extraction.outputs).all(axis=1)]
    if len(outputs) == 0:
        raise GcaError(f"attack: no output for {victim.device} is finite; its model overflows everywhere")
    if lost := len(extraction.outputs) - len(outputs):
        remarks.append(f"{lost} outputs are not finite and were left out")
    found = leakage(victim.samples, outputs, others.reference)
    details = extraction.details | {
        "records": len(victim.samples), "outputs": len(outputs), "reference": len(others.reference), "remarks": remarks,
    }  # fmt: skip
    return AttackRecord(
        victim.device, extraction.attack, knows, count, search.steps, found.ntmse, found.excess_cosine, details
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: a sum must not depend on how many cores this machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)

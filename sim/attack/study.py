"""Attack one device of a finished study, judge what comes out, and write it into the study."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from broker_server.study.records import AttackRecord
from broker_server.study.results import last_run
from broker_server.study.store import StudyStore
from edge_client.errors import ConfigError, GcaError
from edge_client.methods.context import initial_state
from edge_client.methods.defences import in_words
from edge_client.words import counted
from sim.attack import latent_only, shadow, white_box
from sim.attack.inversion import Search
from sim.attack.linkage import link, rotation_free
from sim.attack.metrics import leakage, paired
from sim.attack.replay import before_round, broadcasts, with_moments
from sim.attack.seen import Floats
from sim.attack.starts import STARTS, STEPS, starting_points
from sim.attack.victim import (
    REFERENCE_RECORDS,
    Bystanders,
    Victim,
    bystanders,
    final_model,
    load_victim,
    on_the_way,
    upload,
    uploaded_codes,
    uploaded_model,
)
from sim.costs.payload import PARAMETER_SHARING

KNOWLEDGE = ("records", "initial-weights", "weights")
MODELS = ("final", "uploaded")
SEED_TELLS = (
    "nothing hides the draw of records, which follows from the run's seed: a server needs no codes to tell which are "
    "of one record"
)


@dataclass(frozen=True)
class _Extraction:
    """An attack's outputs (S, d_x), which may hold rows that are not finite, and what else is to be written down."""

    attack: str
    round: int
    outputs: Floats
    details: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def attack_study(
    directory: Path, *, victim: int = 1, starts: int = STARTS, steps: int = STEPS, model: str = "final",
    knows: Collection[str] = (), round: int | None = None,
) -> AttackRecord:  # fmt: skip
    """Attack a device as its method allows, with the paper's settings by default; return what was written down.

    Parameter sharing is attacked through the device's `model`, which is the "final" one or what it "uploaded" in the
    last round; GCA through its codes alone: those after five more reconstruction epochs, or those it uploaded in
    `round`. `knows` gives an attacker what the paper's has not. Public "records": a model is then searched from those
    in place of noise, and codes are read by a shadow device. The "initial-weights", also together with records, of
    GCA's devices. "weights" are the victim's own, which no server of GCA has: a control that tells what it is worth to
    hide them. Raises ConfigError for an attack that the method does not allow, EnvironmentFault for a folder without a
    finished study or one that cannot be written to, GcaError when nothing can be judged.
    """
    _check(starts, steps, model, knows, round)
    search, target = Search(steps=steps), load_victim(directory, victim)
    others = bystanders(directory, target)
    points = starting_points(target.shape, target.study.seed, starts)
    with StudyStore.open(directory, writable=True) as store, _one_thread():
        if target.study.method in PARAMETER_SHARING:
            if set(knows) - {"records"} or round is not None:
                raise ConfigError(
                    f"--knows, --round: a server of {target.study.method} has models; leave out all but --knows records"
                )
            if "records" in knows:
                points = _some(others.public)[:starts]
            extraction = _from_model(directory, target, model, points, search)
        else:
            _require_codes(target)
            if model != "final":
                raise ConfigError(f"--model {model}: devices of {target.study.method} upload no model")
            extraction = _from_codes(directory, target, others, points, search, knows, round)
        record = _judged(target, others, extraction, starts, search, "+".join(sorted(set(knows))))
        store.record_attack(last_run(store).run, record)
    return record


def link_study(directory: Path, *, victim: int = 1, round: int | None = None) -> AttackRecord:
    """Tell how well one GCA device's codes of `round` (the last) can be linked to those of the round before."""
    target = load_victim(directory, victim)
    _require_codes(target)
    round = target.study.rounds if round is None else round
    if not 2 <= round <= target.study.rounds:
        raise ConfigError(f"linkage: round {round} and the one before it must be rounds 1 to {target.study.rounds}")
    with StudyStore.open(directory, writable=True) as store, _one_thread():
        heard = broadcasts(directory)[round - 2 : round]
        earlier = upload(target, before_round(directory, target, round - 1), round - 1)
        state = target.half.after_broadcast(earlier.state, target.context(round - 1), heard[0])
        later = upload(target, state, round)
        found = link(earlier.codes, earlier.rows, later.codes, later.rows)
        mu = [broadcast["centroids"] for broadcast in heard]
        alike = [
            rotation_free(sent.codes, own, min(map(len, mu))) for sent, own in zip((earlier, later), mu, strict=True)
        ]
        unturned = link(alike[0], earlier.rows, alike[1], later.rows)
        hyper = target.study.training
        remarks = [*on_the_way(hyper), *([] if in_words(hyper) else [SEED_TELLS])]
        details = {"common": found.common, "linked": found.linked, "linked_in_any_rotation": unturned.linked,
                   "chance": found.chance, "remarks": remarks}  # fmt: skip
        record = AttackRecord(target.device, "linkage", "", round, 0, 0, None, None, details)
        store.record_attack(last_run(store).run, record)
    return record


def _check(starts: int, steps: int, model: str, knows: Collection[str], round: int | None) -> None:
    for option, value, least in (("--starts", starts, 1), ("--steps", steps, 0)):
        if value < least:
            raise ConfigError(f"{option} {value}: use {least} or more")
    for known in knows:
        if known not in KNOWLEDGE:
            raise ConfigError(f"--knows {known}: choose {' or '.join(KNOWLEDGE)}")
    if "weights" in knows and len(set(knows)) > 1:
        raise ConfigError("--knows weights: is a control of its own; leave the other --knows out")
    if "weights" in knows and round is not None:
        raise ConfigError("--knows weights: are those after the last round; leave --round out")
    if model not in MODELS:
        raise ConfigError(f"--model {model}: choose {' or '.join(MODELS)}")


def _from_model(directory: Path, victim: Victim, model: str, points: Floats, search: Search) -> _Extraction:
    last = victim.study.rounds
    seen = final_model(victim) if model == "final" else uploaded_model(victim, before_round(directory, victim, last))
    return _Extraction(f"white_box_{model}", last, white_box.attack(seen, points, search).outputs)


def _from_codes(
    directory: Path, victim: Victim, others: Bystanders, points: Floats, search: Search, knows: Collection[str],
    round: int | None,
) -> _Extraction:  # fmt: skip
    study = victim.study
    if "weights" in knows:
        return _from_model(directory, victim, "final", points, search)
    remarks: tuple[str, ...] = ()
    if round is None:
        round = study.rounds + 1
        victim, remarks = with_moments(directory, victim)
        sent = upload(victim, victim.state, round)
    else:
        sent = upload(victim, before_round(directory, victim, round), round)
    seen = uploaded_codes(victim, sent)
    remarks += on_the_way(study.training)
    initial = initial_state(victim.context(0)).parameters if "initial-weights" in knows else None
    details: dict[str, Any] = {"codes": len(seen.codes)}
    if "records" in knows:
        heard = broadcasts(directory)[: round - 1]
        guesses = shadow.attack(seen, heard, _some(others.public), study.seed, initial=initial)
        details["public"] = len(others.public)
        matched = paired(victim.samples[sent.rows], guesses, others.reference)
        details |= {"paired_ntmse": matched.ntmse, "nearer_than_strangers": matched.nearer}
        return _Extraction("shadow", round, guesses[: len(points)], details, remarks)
    found = latent_only.attack(seen, points, search, study.seed, initial=initial)
    return _Extraction("latent_only", round, found.outputs, details, remarks)


def _some(public: Floats) -> Floats:
    """Return the attacker's records; raises ConfigError if there are none."""
    if len(public) == 0:
        raise ConfigError(
            "attack: no public records: the reference bank has all normal records of the test set; "
            "take a larger data set"
        )
    return public


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
        remarks.append(f"{counted(lost, 'output')} left out: not finite")
    found = leakage(victim.samples, outputs, others.reference)
    details = extraction.details | {
        "records": len(victim.samples), "outputs": len(outputs), "reference": len(others.reference), "remarks": remarks,
    }  # fmt: skip
    return AttackRecord(victim.device, extraction.attack, knows, extraction.round, count, search.steps, found.ntmse,
                        found.excess_cosine, details)  # fmt: skip


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

"""The attack on GCA sees codes and a shape, and learns what can be learned from them."""

import gc
import subprocess
import sys
import types
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
import torch
from attack.attack_tools import IMAGES, SMALL, finished_study

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import Architecture, initial_parameters
from sim.attack.inversion import Search
from sim.attack.latent_only import Fit, attack, cycle_loss, learn_cycle
from sim.attack.networks import fresh_parameters, halves
from sim.attack.seen import Floats, Shape, UploadedCodes
from sim.attack.starts import starting_points
from sim.attack.victim import Victim, load_victim, upload, uploaded_codes

SHAPE = Shape(SMALL, 6)
CODES = np.random.default_rng(3).normal(size=(60, 3)).astype(np.float32)


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return load_victim(finished_study(tmp_path / "study"), 1)


def reachable(root: object) -> list[object]:
    """Return every object that can be reached from `root` by following references, code and classes apart.

    An array is not tracked by the collector, so what lies beneath it is asked for.
    """
    found, queue = {id(root): root}, [root]
    while queue:
        thing = queue.pop()
        for other in [*gc.get_referents(thing), getattr(thing, "base", None)]:
            code = isinstance(other, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType)
            if not code and id(other) not in found:
                found[id(other)] = other
                queue.append(other)
    return list(found.values())


# ---- nothing but codes -----------------------------------------------------------------------------------------------


def test_no_weight_and_no_record_can_be_reached_from_what_the_attacker_holds(victim: Victim) -> None:
    seen = uploaded_codes(victim, upload(victim, victim.state, 3))
    arrays = [thing for thing in reachable(seen) if isinstance(thing, np.ndarray | torch.Tensor)]
    assert [array.shape for array in arrays] == [(20, 3)], "the codes are the only numbers there are"
    assert arrays[0] is seen.codes and seen.codes.base is None and not seen.codes.flags.writeable
    assert not any(isinstance(thing, Victim | bytes | memoryview | Path) for thing in reachable(seen))


def held(hint: Any) -> set[Any]:
    """Return the types that a value of this annotated type is made of, fields of fields included."""
    if get_origin(hint) is Literal:
        return {str}
    if get_origin(hint) is not None:  # a union, a tuple, an array: its parts
        return set().union(*map(held, get_args(hint)))
    fields = isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, msgspec.Struct))
    return {hint}.union(*map(held, get_type_hints(hint).values())) if fields else {hint}


def test_by_its_types_the_attacker_holds_codes_and_the_settings_of_the_model() -> None:
    """A field of another type anywhere below (a path, a trainer, a store, a secret) would be in these sets."""
    asked = get_type_hints(attack)
    settings = {int, float, str, bool, type(None), Ellipsis}
    assert held(Shape) == {Shape, Hyperparameters} | settings
    assert held(asked["seen"]) == {UploadedCodes} | held(Floats) | held(Shape)
    assert get_type_hints(UploadedCodes) == {"codes": Floats, "shape": Shape}


def test_the_walk_finds_what_hides_behind_a_view_a_closure_or_a_field(victim: Victim) -> None:
    records = victim.samples.copy()
    for holder in (records[:20, :3].T, (lambda: records).__closure__, victim):
        assert any(isinstance(thing, np.ndarray) and thing.shape == (40, 6) for thing in reachable(holder))


def test_what_is_seen_does_not_follow_the_array_it_was_made_from() -> None:
    codes = CODES.copy()
    seen = UploadedCodes(codes, SHAPE)
    codes[:] = 0
    np.testing.assert_array_equal(seen.codes, CODES)
    with pytest.raises(ValueError, match="read-only"):
        seen.codes[0] = 1
    with pytest.raises(AttributeError):
        seen.codes = CODES  # type: ignore[misc]


def test_a_process_that_has_nothing_but_the_codes_gets_the_same_outputs(victim: Victim, tmp_path: Path) -> None:
    seen = uploaded_codes(victim, upload(victim, victim.state, 3))
    search, fit = Search(steps=20), Fit(epochs=5)
    here = attack(seen, starting_points(seen.shape, 7, 8), search, 7, fit=fit).outputs
    np.save(tmp_path / "codes.npy", seen.codes)
    program = f"""
import sys, numpy as np, torch
from edge_client.hyperparameters import Hyperparameters
from sim.attack.inversion import Search
from sim.attack.latent_only import Fit, attack
from sim.attack.seen import Floats, Shape, UploadedCodes
from sim.attack.starts import starting_points
torch.set_num_threads(1)
hyper = Hyperparameters(hidden={SMALL.hidden}, latent_dim={SMALL.latent_dim})
seen = UploadedCodes(np.load("codes.npy"), Shape(hyper, 6))
np.save("outputs.npy", attack(seen, starting_points(seen.shape, 7, 8), Search(steps=20), 7, fit=Fit(epochs=5)).outputs)
victims = {{"broker_server.study.store", "edge_client.data.records", "sim.attack.victim", "sim.config.study"}}
loaded = victims & set(sys.modules)
assert not loaded, loaded
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(root)},
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npy"), here)


@pytest.mark.parametrize("codes", [np.zeros((1, 3)), np.zeros(3), np.full((4, 3), np.nan)])
def test_codes_that_nothing_can_be_learned_from_are_refused(codes: Any) -> None:
    with pytest.raises(ConfigError, match="two or more finite codes"):
        UploadedCodes(codes.astype(np.float32), SHAPE)


# ---- the surrogate ---------------------------------------------------------------------------------------------------


def surrogate_loss(codes: np.ndarray, fit: Fit) -> tuple[float, float]:
    """Return the mean cycle loss over all codes before and after training."""
    surrogate = halves(SHAPE, fresh_parameters(SHAPE, np.random.default_rng(1)))
    values = torch.tensor(codes)
    before = float(cycle_loss(surrogate, values).detach())
    learn_cycle(surrogate, values, np.random.default_rng(2), fit)
    return before, float(cycle_loss(surrogate, values).detach())


def test_the_surrogate_learns_the_cycle() -> None:
    before, after = surrogate_loss(CODES, Fit())
    assert after < 0.02 * before


def test_the_parameters_of_the_best_validation_epoch_are_kept() -> None:
    """One code of nine is held out; the returned loss is that of the kept parameters on it."""
    codes, rng = torch.tensor(CODES[:9]), np.random.default_rng(2)
    surrogate = halves(SHAPE, fresh_parameters(SHAPE, np.random.default_rng(1)))
    held = codes[np.random.default_rng(2).permutation(9)[:1]]
    best = learn_cycle(surrogate, codes, rng, Fit(learning_rate=0.3, epochs=40))
    assert float(cycle_loss(surrogate, held).detach()) == best


def test_training_ends_when_validation_no_longer_improves() -> None:
    """With a rate of zero nothing moves: the first epoch sets the best, and `patience` more bring nothing."""
    calls = []

    class Counted(np.random.Generator):
        def permutation(self, *given: Any) -> Any:  # type: ignore[override]
            calls.append(given)
            return super().permutation(*given)

    surrogate = halves(SHAPE, initial_parameters(Architecture(6, (12,), 3), np.random.default_rng(1)))
    fit = Fit(learning_rate=0.0, patience=20)
    learn_cycle(surrogate, torch.tensor(CODES), Counted(np.random.PCG64(0)), fit)
    assert len(calls) == 1 + 1 + 20, "one permutation splits the codes, one orders each epoch"
    assert calls[0] == (60,) and set(calls[1:]) == {(54,)}, "a tenth of them is no part of the training"


def test_images_are_searched_in_their_box() -> None:
    """From far outside, the first step ends in the box, which is better than where a step of 0.01 leads."""
    shape = Shape(msgspec.convert(IMAGES, Hyperparameters, strict=False), 192)
    codes = np.random.default_rng(3).normal(size=(20, 16)).astype(np.float32)
    points = 50 * starting_points(shape, 1, 4)
    found = attack(UploadedCodes(codes, shape), points, Search(steps=3), 1, fit=Fit(epochs=1))
    assert np.abs(found.inputs).max() <= 1.0


def test_the_attack_is_a_function_of_its_arguments() -> None:
    seen, starts = UploadedCodes(CODES, SHAPE), starting_points(SHAPE, 1, 5)
    run = [attack(seen, starts, Search(steps=30), seed, fit=Fit(epochs=8)).outputs for seed in (1, 1, 2)]
    np.testing.assert_array_equal(run[0], run[1])
    assert not np.array_equal(run[0], run[2])
    own = initial_parameters(Architecture(6, (12,), 3), np.random.default_rng(9))
    begun_elsewhere = attack(seen, starts, Search(steps=30), 1, initial=own, fit=Fit(epochs=8)).outputs
    assert not np.array_equal(run[0], begun_elsewhere)

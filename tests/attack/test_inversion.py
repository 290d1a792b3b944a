"""Input optimisation: where it must end on maps whose fixed points are known, and each start on its own."""

import numpy as np
import pytest
import torch
from attack.attack_tools import affine
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import Architecture, initial_parameters, reconstruct
from edge_client.model.choice import trainer_for
from sim.attack.inversion import Search, invert
from sim.attack.networks import halves
from sim.attack.seen import ReleasedModel, Shape
from sim.attack.starts import starting_points
from sim.attack.white_box import attack

RNG = np.random.default_rng(5)


def points(count: int, width: int) -> np.ndarray:
    return RNG.normal(size=(count, width))


# ---- where it ends ---------------------------------------------------------------------------------------------------


def test_a_contraction_is_inverted_to_its_one_fixed_point() -> None:
    """T(x) = a + (x - a) M with ||M|| < 1 has x = a as its only fixed point."""
    a = np.array([1.0, -2.0, 0.5, 3.0])
    rotation, _ = np.linalg.qr(points(4, 4))
    matrix = 0.5 * rotation
    model = halves(*affine(matrix, a - a @ matrix))
    found = invert(model, points(20, 4), Search(steps=3000, patience=300))
    np.testing.assert_allclose(found.inputs, np.tile(a, (20, 1)), atol=0.01)
    np.testing.assert_allclose(found.outputs, np.tile(a, (20, 1)), atol=0.01)


def test_a_projection_is_inverted_to_points_of_its_plane() -> None:
    """T(x) = x P + b, P the projection to a plane: fixed points are the plane through c, where c = b, P c = 0.

    The starts stay apart in the plane: the objective's gradient has no component along it.
    """
    basis, _ = np.linalg.qr(points(5, 2))
    projection = basis @ basis.T
    offset = np.array([1.0, 2.0, -1.0, 0.5, 3.0]) @ (np.eye(5) - projection)
    found = invert(halves(*affine(projection, offset)), points(30, 5), Search())
    np.testing.assert_allclose(found.outputs @ projection + offset, found.outputs, atol=1e-9)
    assert found.residuals.max() < 1e-3
    assert np.ptp(found.outputs @ basis, axis=0).min() > 0.5


def test_images_stay_in_the_box() -> None:
    """T(x) = a for every x, with a outside the box: x* is the nearest point of the box, and T(x*) still a."""
    a = np.array([3.0, -0.5, -7.0])
    found = invert(halves(*affine(np.zeros((3, 3)), a)), np.zeros((4, 3)), Search(bounds=(-1.0, 1.0)))
    np.testing.assert_allclose(found.inputs, np.tile([1.0, -0.5, -1.0], (4, 1)), atol=0.01)
    np.testing.assert_allclose(found.outputs, np.tile(a, (4, 1)))


def test_no_step_gives_the_reconstructions_of_the_starts() -> None:
    model = halves(*affine(points(3, 3), points(1, 3)[0]))
    starts = points(6, 3)
    found = invert(model, starts, Search(steps=0))
    np.testing.assert_array_equal(found.inputs, starts)
    with torch.no_grad():
        np.testing.assert_array_equal(found.outputs, model.reconstruct(torch.tensor(starts)).numpy())
    assert found.steps.tolist() == [0] * 6


# ---- each start on its own -------------------------------------------------------------------------------------------


@pytest.fixture
def relu_model() -> tuple[Shape, np.ndarray]:
    shape = Shape(Hyperparameters(hidden=(8, 5), latent_dim=3), 6)
    return shape, initial_parameters(Architecture(6, (8, 5), 3), np.random.default_rng(2), np.float64)


def test_batched_starts_equal_one_start_at_a_time(relu_model: tuple[Shape, np.ndarray]) -> None:
    starts = points(12, 6)
    search = Search(steps=400, tolerance=0.02, patience=4)
    together = invert(halves(*relu_model), starts, search)
    alone = [invert(halves(*relu_model), starts[i : i + 1], search) for i in range(12)]
    assert len(set(together.steps.tolist())) > 1, "the starts must end at different times for this to say anything"
    assert together.steps.tolist() == [int(one.steps[0]) for one in alone]
    for name in ("inputs", "outputs", "residuals"):
        np.testing.assert_allclose(getattr(together, name), np.concatenate([getattr(one, name) for one in alone]),
                                   rtol=1e-9, atol=1e-12)  # fmt: skip


def test_the_steps_are_those_of_torch_adam(relu_model: tuple[Shape, np.ndarray]) -> None:
    model, starts = halves(*relu_model), points(3, 6)
    found = invert(model, starts, Search(steps=60, tolerance=-1e9, patience=10))  # every step counts as progress
    for i, start in enumerate(starts):
        x = torch.tensor(start[None], requires_grad=True)
        adam = torch.optim.Adam([x], lr=1e-2)
        path = []
        for _ in range(60):
            adam.zero_grad()
            objective = (x - model.reconstruct(x)).square().sum()
            path.append((float(objective.detach()), x.detach().numpy().copy()))
            objective.backward()  # type: ignore[no-untyped-call]
            adam.step()
        path.append((float((x - model.reconstruct(x)).square().sum().detach()), x.detach().numpy().copy()))
        best, where = min(path, key=lambda point: point[0])
        np.testing.assert_allclose(found.inputs[i], where[0], rtol=1e-9)
        np.testing.assert_allclose(found.residuals[i], best, rtol=1e-9)


def test_a_start_ends_after_ten_steps_without_progress() -> None:
    """T(x) = x + b: the objective is ||b||^2 everywhere. The start sets the best, then ten steps bring nothing."""
    found = invert(halves(*affine(np.eye(2), np.array([3.0, 4.0]))), points(5, 2), Search())
    assert found.steps.tolist() == [10] * 5
    np.testing.assert_allclose(found.residuals, 25.0)


def test_improvement_below_a_thousandth_is_no_progress_but_is_kept() -> None:
    """T(x) = 0: a step of 0.01 takes two hundredths off the objective at 1, and two ten-thousandths at 100."""
    found = invert(halves(*affine(np.zeros((1, 1)), np.zeros(1))), np.array([[100.0], [1.0]]), Search(steps=50))
    assert found.steps.tolist() == [10, 50]
    np.testing.assert_allclose(found.inputs[0], 100.0 - 10 * 0.01, atol=1e-3)


def test_a_perfect_start_is_kept() -> None:
    """T(x) = x: nothing can improve on zero."""
    starts = points(4, 3)
    found = invert(halves(*affine(np.eye(3), np.zeros(3))), starts, Search())
    np.testing.assert_array_equal(found.outputs, starts)
    assert found.steps.tolist() == [10] * 4


def test_a_start_where_the_model_overflows_leaves_the_others_alone(relu_model: tuple[Shape, np.ndarray]) -> None:
    starts = points(4, 6)
    spoilt = np.concatenate([starts, np.full((1, 6), 1e300)])
    search = Search(steps=50)
    with_it, without = invert(halves(*relu_model), spoilt, search), invert(halves(*relu_model), starts, search)
    np.testing.assert_allclose(with_it.outputs[:4], without.outputs, rtol=1e-9)
    assert np.isfinite(with_it.outputs[:4]).all()
    assert with_it.residuals[4] == np.inf


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), steps=st.integers(0, 40))
def test_more_steps_never_leave_a_start_worse(seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    parameters = initial_parameters(Architecture(4, (6,), 2), rng, np.float64)
    model = halves(Shape(Hyperparameters(hidden=(6,), latent_dim=2), 4), parameters)
    starts = rng.normal(size=(3, 4))
    assert (
        invert(model, starts, Search(steps=steps + 5)).residuals <= invert(model, starts, Search(steps=steps)).residuals
    ).all()


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps"):
        Search(steps=-1)
    with pytest.raises(ConfigError, match="patience"):
        Search(patience=0)


# ---- the victim's own map --------------------------------------------------------------------------------------------


def test_the_dense_map_is_the_devices() -> None:
    arch = Architecture(9)
    parameters, x = initial_parameters(arch, RNG), points(30, 9).astype(np.float32)
    with torch.no_grad():
        ours = halves(Shape(Hyperparameters(), 9), parameters).reconstruct(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours, reconstruct(arch, parameters, x), atol=1e-5)


def test_the_convolutional_map_is_the_devices_and_can_be_attacked() -> None:
    hyper = Hyperparameters(model="convolutional", image=(1, 8, 8), hidden=(4, 4), latent_dim=16)
    trainer, shape = trainer_for(hyper, 64), Shape(hyper, 64)
    parameters = trainer.initial(RNG).parameters
    x = RNG.uniform(-1, 1, (5, 64)).astype(np.float32)
    model = halves(shape, parameters)
    with torch.no_grad():
        there = torch.tensor(x, device=model.device)
        np.testing.assert_allclose(model.encode(there).cpu().numpy(), trainer.encode(parameters, x), atol=1e-5)
        scores = (there - model.reconstruct(there)).square().sum(dim=1).cpu().numpy()
    np.testing.assert_allclose(scores, trainer.score(parameters, x), rtol=1e-4)

    starts = starting_points(shape, seed=1, count=6)
    found = attack(ReleasedModel(parameters, shape), starts, Search(steps=30))
    assert np.abs(starts).max() <= 1 and np.abs(found.inputs).max() <= 1
    assert found.outputs.shape == (6, 64) and (found.residuals < trainer.score(parameters, starts)).all()


def test_a_model_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="another architecture"):
        halves(Shape(Hyperparameters(), 9), np.zeros(10, np.float32))


def test_starts_are_one_bank_for_all_methods_and_grow_in_place() -> None:
    table = Shape(Hyperparameters(), 7)
    few, many = starting_points(table, seed=3, count=10), starting_points(table, seed=3, count=1000)
    np.testing.assert_array_equal(few, many[:10])
    assert few.dtype == np.float32 and not np.array_equal(few, starting_points(table, seed=4, count=10))
    assert abs(float(many.mean())) < 0.1 and abs(float(many.std()) - 1) < 0.1

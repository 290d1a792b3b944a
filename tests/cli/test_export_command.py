"""Studies for TensorBoard and MLflow: the series by hand, and what the tools' own readers find."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from report.report_studies import CURVE, written

from sim.export.series import Exported, exported

STEPS = [1, 2, 3, 4]
MEAN = [0.625, 0.5, 0.75, 0.625]
"""Accuracy along CURVE, of two devices."""


def series(one: Exported, name: str) -> list[tuple[int, float]]:
    return [(scalar.step, scalar.value) for scalar in one.scalars if scalar.name == name]


def test_every_quality_and_cost_over_the_evaluations(tmp_path: Path) -> None:
    """Each round moves 2 devices * 32 payload and 170 message bytes each, and 2 * 460 on the wire; the rounds took 12
    and 8 s."""
    (one,) = exported([written(tmp_path / "study", link="none")])
    assert len(CURVE) == len(STEPS)
    assert series(one, "accuracy") == list(zip(STEPS, MEAN, strict=True))
    assert series(one, "spent/payload_bytes") == [(1, 0), (2, 64), (3, 64), (4, 128)]
    assert series(one, "spent/message_bytes") == [(1, 0), (2, 340), (3, 340), (4, 680)]
    assert series(one, "spent/wire_bytes") == [(1, 0), (2, 920), (3, 920), (4, 1840)]
    assert series(one, "round/seconds") == [(1, 12.0), (2, 8.0)]
    assert series(one, "round/accepted") == [(1, 2.0), (2, 2.0)]
    assert series(one, "average_precision") == []  # undefined throughout
    assert one.totals["peak_accuracy"] == 0.75 and one.totals["final_accuracy"] == 0.625
    assert one.totals["total_wire_bytes"] == 1840


def test_accuracy_over_each_cost_has_the_cost_as_its_step(tmp_path: Path) -> None:
    (one,) = exported([written(tmp_path / "study", link="none")])
    assert series(one, "accuracy_over/wire_bytes") == list(zip([0, 920, 920, 1840], MEAN, strict=True))
    assert series(one, "accuracy_over/rounds") == [(1, 0.5), (2, 0.625)]
    seconds = [value for _, value in series(one, "spent/seconds")]
    assert [step for step, _ in series(one, "accuracy_over/milliseconds")] == [round(1000 * s) for s in seconds]
    assert seconds == sorted(seconds) and seconds[-1] > 0


def test_settings_have_dotted_keys_and_studies_names_of_their_own(tmp_path: Path) -> None:
    first, second = exported([
        written(tmp_path / "a", link="none"), written(tmp_path / "b", method="fedavg", link="none")
    ])  # fmt: skip
    assert first.settings["training.latent_dim"] == "2" and first.settings["seed"] == "100"
    assert (first.name, second.name) == ("gca-none", "fedavg-none")


@pytest.mark.parametrize(("tool", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_tool_that_is_not_installed_is_one_line_with_the_command(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    study = written(tmp_path / "study", link="none")
    said = cli("export", str(study), "--to", tool, "--output", str(tmp_path / "out"))
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith(f"error: --to {tool} needs ")
    assert said.err.endswith(f": pip install '.[{tool}]' in gca's folder\n")
    assert said.err.count("\n") == 1


def test_a_folder_that_holds_no_study_is_one_line(cli, tmp_path: Path) -> None:
    said = cli("export", str(tmp_path), "--to", "tensorboard")
    assert said.code == 3 and "holds no study" in said.err and said.err.count("\n") == 1


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "gca-none"), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def read_mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    from sim.export.mlflow import address

    client = MlflowClient(tracking_uri=address(str(folder)))
    (experiment,) = [one for one in client.search_experiments() if one.name == "gca"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["training.latent_dim"] == "2" and run.info.status == "FINISHED"
    return {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics}  # fmt: skip


READERS: dict[str, Callable[[Path], dict[str, list[tuple[int, float]]]]] = {
    "tensorboard": read_tensorboard, "mlflow": read_mlflow,
}  # fmt: skip


INSTALLED = [tool for tool in READERS if find_spec(tool)]
"""Both are heavy for what they do here, so they are extras, and no part of what development needs."""


@pytest.mark.parametrize("tool", INSTALLED or [pytest.param("", marks=pytest.mark.xfail(run=False, reason="no extra"))])
def test_the_tool_reads_back_what_was_written(cli, tmp_path: Path, tool: str) -> None:
    study, output = written(tmp_path / "study", link="none"), tmp_path / "out"
    said = cli("export", str(study), "--to", tool, "--output", str(output))
    assert said.code == 0, said.err
    found = READERS[tool](output)
    (one,) = exported([study])
    for name in {scalar.name for scalar in one.scalars}:
        assert found[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in series(one, name)], name
    assert found["peak_accuracy"][-1][1] == 0.75
    again = cli("export", str(study), "--to", tool, "--output", str(output))
    assert again.code == 3 and "already" in again.err and again.err.count("\n") == 1

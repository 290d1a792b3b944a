"""Training recorded once and timed on other links: what a real run would give, or a refusal that says why not."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_rows import rows

from broker_server.study.checkpoint import load_checkpoint
from edge_client.errors import ConfigError, GcaError
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState, NumpyTrainer
from sim.config.study import Study, load_study
from sim.data.partition import shares
from sim.emulation import workload
from sim.emulation.study import resume_study, run_study
from sim.fleet import program
from sim.fleet.recording import FOLDER, identity, recording
from sim.fleet.replay import BEGINNING, NO_MODEL, ReplayedWork, taught, trained
from sim.grid.cells import cells
from sim.grid.runner import run_cells
from sim.screen.progress import Quiet

FAST, SLOW = "10mbit/10mbit/10ms", ["64kbit/64kbit/300ms", "256kbit/1mbit/40ms"]


def study(**changes: Any) -> Study:
    fixed = {"devices": 4, "rounds": 3, "hardware": "pi-4b", "clock": "virtual", "compute": "replay"}
    return load_study("demo", {**fixed, **changes})


def everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All tables but for the seconds that a person waited and what a person is told."""
    names = rows(folder, "SELECT name FROM sqlite_master WHERE type = 'table'")
    tables = {name: sorted(rows(folder, f"SELECT * FROM {name}"), key=repr) for (name,) in names}
    tables["runs"] = rows(folder, "SELECT name, completed, seconds_clock, state_sha256 FROM runs")
    tables["events"] = rows(folder, "SELECT round, device, kind, count, detail FROM events WHERE kind != 'note'")
    return tables


def notes(folder: Path) -> str:
    return "\n".join(detail for (detail,) in rows(folder, "SELECT detail FROM events WHERE kind = 'note'"))


def forbid_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever trains, encodes, judges or aggregates fail."""

    def forbidden(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("this should have come from the recording")

    for kind in {NumpyTrainer, type(trainer_for(study().training, 9))}:
        for name in ("initial", "reconstruct", "align", "encode", "score"):
            monkeypatch.setattr(kind, name, forbidden)
    for server in ("gca.GcaServer", "fedavg.FedAvgServer"):
        monkeypatch.setattr(f"broker_server.methods.{server}.aggregate", forbidden)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="gca"),
        pytest.param({"method": "fedavg", "training.hidden": [16], "training.upload_codec": "int8",
                      "participation.fraction": 0.5, "evaluation.every": "round"}, id="fedavg"),
        pytest.param({"participation.dropout": 0.3, "participation.deadline": 60.0}, id="silent devices"),
    ],
)  # fmt: skip
def test_a_replay_ends_in_every_row_as_the_real_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    real, recorded, replayed = tmp_path / "a" / "slow", tmp_path / "b" / "fast", tmp_path / "b" / "slow"
    run_study(study(**changes, link=SLOW, compute="real"), real, Quiet())
    run_study(study(**changes, link=FAST), recorded, Quiet())
    assert "is recorded" in notes(recorded)
    forbid_training(monkeypatch)
    run_study(study(**changes, link=SLOW), replayed, Quiet())
    assert "recorded by fast on link 10mbit" in notes(replayed)
    assert everything(replayed) == everything(real)
    assert rows(replayed, "SELECT count(*) FROM evaluations") > [(0,)]
    for path in (*(real / "models").iterdir(), *(real / "rounds").iterdir()):
        (arrays, about), (others, told) = load_checkpoint(path), load_checkpoint(replayed / path.relative_to(real))
        assert told == about and others.keys() == arrays.keys()
        assert all(others[name].tobytes() == array.tobytes() for name, array in arrays.items())
    assert rows(recorded, "SELECT seconds_clock FROM runs") < rows(replayed, "SELECT seconds_clock FROM runs")


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (FAST, SLOW, r"link 64kbit.*round 1: the uploads of dev-0001, dev-0003 are not in time, unlike on link 10mbit"),
        (SLOW, FAST, r"link 10mbit.*round 1: the uploads of dev-0001, dev-0003 are in time, unlike on link 64kbit"),
    ],
)  # fmt: skip
def test_a_link_that_changes_who_takes_part_is_refused(tmp_path: Path, first: Any, then: Any, reason: str) -> None:
    tight = {"participation.deadline": 0.4, "rounds": 1}
    run_study(study(link=first, **tight), tmp_path / "first", Quiet())
    with pytest.raises(GcaError, match=reason + r'.*compute = "real"'):
        run_study(study(link=then, **tight), tmp_path / "then", Quiet())
    assert "replay" in rows(tmp_path / "then", "SELECT reason FROM runs WHERE NOT completed")[0][0]
    assert not list((tmp_path / "then" / "models").iterdir())


def test_a_final_model_is_taken_by_whoever_has_gone_through_the_same(tmp_path: Path) -> None:
    """A device that never hears of the last round reports nothing that is off, yet its model is another."""
    with recording(study(link=FAST), "", tmp_path / "fast", lambda text: None) as made:
        made.keep_model("dev-0001", trained(BEGINNING, 1), ModelState.fresh(np.ones(3, np.float32)))
        made.keep_model("dev-0002", BEGINNING, ModelState.fresh(np.ones(3, np.float32)))
        made.complete()
    with recording(study(link=SLOW), "", tmp_path / "slow", lambda text: None) as read:
        work = ReplayedWork(read, "slow")
        for device in ("dev-0001", "dev-0002"):
            work.method(device)("gca")
        model = work.ended("dev-0002", NO_MODEL)
        assert model is not None and model.parameters.tolist() == [1, 1, 1]
        with pytest.raises(GcaError, match="dev-0001 ends with a model that has taken in other broadcasts"):
            work.ended("dev-0001", NO_MODEL)


def test_half_a_recording_is_none(tmp_path: Path) -> None:
    """The quorum fails in round 1 on the slow link; the next study records anew."""
    tight = {"participation.deadline": 0.01, "rounds": 1}
    with pytest.raises(GcaError, match="0 of 1 upload"):
        run_study(study(link=SLOW, **tight), tmp_path / "slow", Quiet())
    assert not list((tmp_path / FOLDER).glob("*.sqlite"))
    run_study(study(link=FAST, rounds=1), tmp_path / "fast", Quiet())
    assert "is recorded" in notes(tmp_path / "fast")
    assert [path.suffix for path in (tmp_path / FOLDER).iterdir()] == [".sqlite"]


def test_of_a_grid_over_links_one_cell_trains(tmp_path: Path) -> None:
    """The first whose rounds get through, whichever is ready first: not even one upload gets through 1 bit/s."""
    over = {"link": ["1bit", FAST, "64kbit"]}
    fixed = {"devices": 3, "rounds": 1, "hardware": "pi-4b", "clock": "virtual", "compute": "replay",
             "participation.deadline": 9.0, "participation.wait_seconds": 30.0}  # fmt: skip
    grid = cells("demo", fixed, over)
    ends = run_cells(grid, tmp_path, jobs=2)
    broken, *good = (ends[cell.name] for cell in grid)
    assert broken.failure is not None and [end.failure for end in good] == [None] * 2
    told = [notes(end.directory) for end in good]
    assert ["is recorded" in text for text in told] == [True, False]
    assert ["is taken from" in text for text in told] == [False, True]
    assert len({rows(end.directory, "SELECT state_sha256 FROM runs")[0] for end in good}) == 1


def test_a_study_stopped_while_it_records_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Quiet):
        def round_opened(self, round: int, devices: int) -> None:
            if round == 3:
                raise KeyboardInterrupt

    folder = tmp_path / "stopped"
    with pytest.raises(BaseException, match=r"stopped|^$"):
        run_study(study(link=FAST, checkpoint_every=1), folder, Stop())
    resume_study(folder, Quiet())
    assert "is not recorded" in notes(folder) and not list((tmp_path / FOLDER).glob("*.sqlite"))
    run_study(study(link=FAST, compute="real"), tmp_path / "real", Quiet())
    state = "SELECT state_sha256 FROM runs"
    assert rows(folder, state) == rows(tmp_path / "real", state)


# ---- what makes a recording another one ------------------------------------------------------------------------------


def test_only_what_merely_times_a_study_is_left_out_of_its_identity() -> None:
    same = identity(study(link=FAST))
    for key, value in {"link": SLOW, "hardware": "pi-zero-2-w", "participation.deadline": 5.0,
                       "participation.wait_seconds": 3.0, "checkpoint_every": "off"}.items():  # fmt: skip
        assert identity(study(**{"link": FAST, key: value})) == same, key
    for key, value in {"seed": 7, "devices": 5, "rounds": 4, "method": "fedavg", "training.learning_rate": 0.5,
                       "clustering.components": 3, "participation.fraction": 0.5, "training.upload_codec": "int8",
                       "evaluation.every": "round", "data.partition": "non_iid"}.items():  # fmt: skip
        assert identity(study(link=FAST, **{key: value})) != same, key


def test_another_program_takes_no_recording_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another numpy, another path of the kernel, or another line of ours."""
    ours, found = identity(study(link=FAST)), set()
    with monkeypatch.context() as changed:
        changed.setattr(program, "version", lambda name: "9.9" if name == "numpy" else version(name))
        found.add(identity(study(link=FAST)))
    with monkeypatch.context() as changed:
        changed.setenv("GCA_KERNEL", "numpy")
        found.add(identity(study(link=FAST)))
    for package in program.COMPUTE:
        (tmp_path / package).mkdir()
        (tmp_path / package / "adam.py").write_text("BETA1 = 0.8\n")
    with monkeypatch.context() as changed:
        changed.setattr(program, "files", lambda package: tmp_path / package)
        program._sources.cache_clear()
        found.add(identity(study(link=FAST)))
    program._sources.cache_clear()
    assert identity(study(link=FAST)) == ours and len(found | {ours}) == 4


def test_a_recording_is_of_the_records_that_were_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another split by the same settings, as by another scikit-learn, is another training; the same is not."""
    run_study(study(link=FAST), tmp_path / "first", Quiet())
    run_study(study(link=SLOW), tmp_path / "same", Quiet())
    with monkeypatch.context() as changed:
        changed.setattr(workload, "shares", lambda study, dataset: [part[::-1] for part in shares(study, dataset)])
        run_study(study(link=SLOW), tmp_path / "other", Quiet())
    told = [notes(tmp_path / name) for name in ("first", "same", "other")]
    assert ["is recorded" in text for text in told] == [True, False, True]
    assert len(list((tmp_path / FOLDER).iterdir())) == 2


def test_the_digest_of_records_tells_all_of_them_apart(tmp_path: Path) -> None:
    """Whose they are, in which order and shape, and what they are judged by."""
    arrays = {name: np.arange(6, dtype=np.float32).reshape(3, 2) + 9 * n for n, name in enumerate(("a", "b", "test"))}
    labels = np.array([0, 0, 1], np.int8)

    def digest_of(labels: Any = labels, **changed: Any) -> str:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        held = arrays | changed
        for name in "ab":
            np.savez(folder / f"{name}.npz", samples=held[name])
        np.savez(folder / "test.npz", test=held["test"], labels=labels)
        return workload.records_digest([workload.Shard(n, 3, folder / f"{n}.npz") for n in "ab"], folder / "test.npz")

    nearly = arrays["a"].copy()
    nearly[2, 1] = np.nextafter(nearly[2, 1], np.float32(9))
    others = [digest_of(a=nearly), digest_of(a=arrays["a"][::-1]), digest_of(a=arrays["a"].reshape(2, 3)),
              digest_of(a=arrays["b"], b=arrays["a"]), digest_of(test=nearly),
              digest_of(labels=np.array([0, 1, 0], np.int8))]  # fmt: skip
    assert digest_of() == digest_of() and len({digest_of(), *others}) == 1 + len(others)


def test_a_past_tells_rounds_order_and_content_apart() -> None:
    ones, zeros = {"x": np.ones(4, np.float32)}, {"x": np.zeros(4, np.float32)}
    pasts = [
        BEGINNING, trained(BEGINNING, 1), trained(BEGINNING, 2), taught(BEGINNING, 1, ones),
        taught(BEGINNING, 1, zeros), taught(BEGINNING, 1, {"y": ones["x"]}),
        taught(BEGINNING, 1, {"x": ones["x"].reshape(2, 2)}),
        taught(trained(BEGINNING, 1), 1, ones), trained(taught(BEGINNING, 1, ones), 1),
    ]  # fmt: skip
    assert len(set(pasts)) == len(pasts)


def test_what_cannot_be_replayed_is_refused_before_it_runs() -> None:
    with pytest.raises(ConfigError, match=r'compute: "replay" re-times .* takes clock = "virtual"'):
        study(clock="real")
    with pytest.raises(ConfigError, match=r"compute: .*over_selection the fastest are taken"):
        study(**{"participation.over_selection": 1.5})
    with pytest.raises(ConfigError, match="compute: 'replay' is nothing to method"):
        study(method="single")

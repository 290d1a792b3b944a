"""Models before the last alignment: brought back bit by bit, or not shown."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from report.report_studies import with_centroids, written

from broker_server.study.checkpoint import load_checkpoint, save_checkpoint
from sim.report import before
from sim.report.before import before_last_alignment
from sim.report.build import build_report
from sim.report.latent import broadcasts, latent_map
from sim.report.study import read_study


def final(study: Path, device: str) -> np.ndarray:
    return load_checkpoint(study / "models" / f"{device}.safetensors")[0]["parameters"]


def test_all_devices_of_a_small_study_are_brought_back(real_study: Path) -> None:
    """A replay is believed only if one more alignment of it gives the saved bits, so what is found is what was."""
    found = before_last_alignment(real_study, 3)
    assert sorted(found) == ["dev-0001", "dev-0002", "dev-0003"]
    for device, parameters in found.items():
        assert parameters.shape == final(real_study, device).shape
        assert not np.array_equal(parameters, final(real_study, device))  # the alignment moved it


def test_a_model_that_a_replay_does_not_end_in_is_left_out(real_study: Path, tmp_path: Path) -> None:
    study = Path(shutil.copytree(real_study, tmp_path / "study"))
    path = study / "models" / "dev-0002.safetensors"
    arrays, about = load_checkpoint(path)
    arrays["parameters"] = arrays["parameters"] + np.float32(1e-3)
    save_checkpoint(path, arrays, about)
    assert sorted(before_last_alignment(study, 3)) == ["dev-0001", "dev-0003"]


def test_what_would_take_long_is_not_done(real_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = before._cost(before.load_victim(real_study, 1))
    assert cost > 0
    monkeypatch.setattr(before, "BUDGET", 2.5 * cost)
    assert sorted(before_last_alignment(real_study, 3)) == ["dev-0001", "dev-0002"]


def test_both_maps_lie_on_one_plane(real_study: Path) -> None:
    """With the final models in the place of the earlier ones the two maps are the same."""
    study = read_study(real_study)
    last = broadcasts(study)[-1]
    same = latent_map(study, last, {device: final(real_study, device) for device in ("dev-0001", "dev-0003")})
    devices, codes = same.before
    kept = np.array([device in ("dev-0001", "dev-0003") for device in same.devices])
    assert devices == tuple(np.array(same.devices)[kept])
    np.testing.assert_allclose(codes, same.codes[kept], atol=1e-9)


def test_a_folder_without_models_is_named_once(tmp_path: Path) -> None:
    study = with_centroids(written(tmp_path / "study", link="none"))
    notes: list[str] = []
    build_report([study], note=notes.append)
    assert notes == [f"{study}: no map of its codes: holds no models"]

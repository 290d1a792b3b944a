"""A study of images with the real command: devices as tasks and as processes learn the same, bit by bit."""

from pathlib import Path

import pytest

REDUCED = (
    "paper/fashion_mnist", "--devices", "2", "--rounds", "1", "--set", "training.recon_epochs=1",
    "--set", "training.align_epochs=1", "--set", "training.hidden=[8,8]", "--set", "clustering.initialisations=2",
    "--set", "evaluation.every=round",
)  # fmt: skip


@pytest.mark.real_data
def test_tasks_and_processes_learn_the_same_from_images(simulate, data_dir: Path) -> None:
    """By hand: each of 2 devices uploads floor(0.1 * 3,000) codes of 784 numbers, and hears of 10 centroids."""
    results = [simulate(*REDUCED, "--data-dir", str(data_dir), "--set", f"isolation={kind}")
               for kind in ("task", "process")]  # fmt: skip
    assert results[0]["state_sha256"] == results[1]["state_sha256"] is not None
    for result in results:
        assert result["payload_bytes"] == {"up": 2 * 300 * 784 * 4, "down": 2 * 10 * 785 * 4}
        assert 0.5 < result["final_accuracy"] < 1

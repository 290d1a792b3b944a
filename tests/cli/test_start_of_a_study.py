"""What the machine has to load before a study's first round: torch only where the study computes with it."""

import subprocess
import sys

import pytest

from sim.config.study import load_study

LOADED = """
import sys
from sim.config.study import load_study
import sim.emulation.study, sim.screen.summary, sim.screen.progress
from sim.torch_thread import torch_in_one_thread
torch_in_one_thread(load_study(sys.argv[1], {"method": sys.argv[2]}))
print("torch" in sys.modules and sys.modules["torch"].get_num_threads())
"""


@pytest.mark.parametrize(
    ("study", "method", "torch"),
    [
        ("paper/magic", "fedavg", "False"),
        ("paper/magic", "centralized", "False"),
        ("paper/magic", "gca", "1"),
        ("paper/fashion_mnist", "fedavg", "1"),
    ],
)
def test_torch_is_loaded_where_it_computes_and_then_in_one_thread(study: str, method: str, torch: str) -> None:
    assert load_study(study, {"method": method}).method == method
    run = subprocess.run([sys.executable, "-c", LOADED, study, method], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == torch

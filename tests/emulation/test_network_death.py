"""The process that is broker and links of an emulation dies: nobody can be told, so nobody is waited for."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from edge_client.errors import GcaError
from sim.config.study import load_study
from sim.emulation import federation
from sim.emulation.study import run_study
from sim.screen.progress import Quiet


def test_a_run_ends_at_once_when_its_network_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks: list[Any] = []
    killed: list[float] = []
    start = federation._Emulation._start_network

    def started(self: Any) -> Any:
        networks.append(start(self))
        return networks[0]

    class Killer(Quiet):
        def round_opened(self, round: int, devices: int) -> None:
            if round == 2:
                killed.append(time.monotonic())
                os.kill(networks[0].process.pid, signal.SIGKILL)

    monkeypatch.setattr(federation._Emulation, "_start_network", started)
    study = load_study("demo", {"devices": 2, "rounds": 1000, "isolation": "process", "clock": "real"})
    with pytest.raises(GcaError, match="the network process has died"):
        run_study(study, tmp_path / "run", Killer())
    assert time.monotonic() - killed[0] < federation.FAREWELL_S / 2

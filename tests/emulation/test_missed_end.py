"""A device's process hangs when all rounds are over: the run is complete, and the study says who missed its end."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_server.rounds.farewell import Farewell
from broker_server.study.records import Outcome
from broker_server.study.store import StudyStore
from sim.config.study import load_study
from sim.emulation import federation
from sim.emulation.study import run_study
from sim.screen.progress import Quiet


def test_a_run_is_complete_although_one_device_hangs_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulations: list[Any] = []
    start = federation._Emulation._start_devices

    def started(self: Any, ports: dict[str, int]) -> None:
        emulations.append(self)
        start(self, ports)

    class Freezer(Quiet):
        """Freezes a device in the last round, once its upload is in."""

        rounds = 0

        def round_opened(self, round: int, devices: int) -> None:
            self.rounds = round

        def uploaded(self, device: str) -> None:
            if (device, self.rounds) == ("dev-0002", 2):
                emulation = emulations[0]
                (child,) = [child for child in emulation.children if child.name == device]
                os.kill(child.process.pid, signal.SIGSTOP)
                plan = replace(emulation.federation.plan, patience_s=0.0)
                emulation.federation = replace(emulation.federation, plan=plan)

    monkeypatch.setattr(federation._Emulation, "_start_devices", started)

    def due(self: Farewell, outcome: Outcome, now: float) -> float:
        """No minute for the dead: until the living one has ended."""
        return now if (tmp_path / "run/models/dev-0001.safetensors").exists() else now + 0.1

    monkeypatch.setattr(federation, "FAREWELL_S", 3.0)
    monkeypatch.setattr(Farewell, "due", due)
    given = {"devices": 2, "rounds": 2, "isolation": "process", "clock": "real"}
    run_study(load_study("demo", given), tmp_path / "run", Freezer())
    with StudyStore.open(tmp_path / "run") as store:
        assert store.rows("SELECT completed, state_sha256 FROM runs") == [(1, None)]
        assert store.rows("SELECT round, device FROM events WHERE kind = 'missed_the_end'") == [(2, "dev-0002")]
        assert store.rows("SELECT count(*) FROM participants WHERE fate = 'accepted'") == [(4,)]

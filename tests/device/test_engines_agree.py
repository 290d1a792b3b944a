"""Three rounds of a federation on every engine of this machine: the curves of the numpy trainer, to rounding."""

from dataclasses import replace

import numpy as np
import pytest
from device.in_memory import PLAN, Federation

from broker_server.methods.fedavg import FedAvgServer
from edge_client.kernel import library


async def curves(method: str) -> dict[tuple[str, int, str, int], list[float]]:
    """Return loss, threshold, accuracy, AUROC and average precision by device, round, phase and epoch."""
    plan = replace(PLAN, method=method)
    federation = Federation(plan, FedAvgServer(plan.hyper, plan.seed) if method == "fedavg" else None)
    outcome, _ = await federation.run()
    assert outcome.completed
    return {
        (told.device, told.round, one.phase, one.epoch): [
            one.loss, one.threshold, one.accuracy, one.auroc, one.average_precision
        ]
        for told in federation.reports
        for one in told.evaluations
    }  # fmt: skip


@pytest.mark.parametrize("path", library.paths())
@pytest.mark.parametrize("method", ["gca", "fedavg"])
async def test_loss_and_accuracy_curves_agree_over_three_rounds(
    method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCA_KERNEL", "numpy")
    expected = await curves(method)
    monkeypatch.setenv("GCA_KERNEL", path)
    found = await curves(method)
    assert found.keys() == expected.keys() and len(found) == 4 * 3 * 2
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-3, err_msg=str(key))

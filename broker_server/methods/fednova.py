"""FedNova, the server half (Wang et al., NeurIPS 2020, eq. 6; the paper's appendix, "FedNova").

theta_r + tau_eff sum_i p_i (theta_i - theta_r) / tau_i, where tau_i = local_epochs * ceil(N_i / batch_size) is the
number of device i's steps and tau_eff = sum_i p_i tau_i: who makes more steps pulls no harder for that. tau_i follows
from what a device told when it joined, so it need not travel.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from broker_server.methods.averaging import sample_shares
from broker_server.methods.base import Upload
from broker_server.methods.fedavg import FedAvgServer


class FedNovaServer(FedAvgServer):
    """Averages the updates per local step: a_i = p_i tau_eff / tau_i."""

    def weights(
        self, uploads: Mapping[str, Upload], theta_r: NDArray[np.float32]
    ) -> tuple[dict[str, Fraction], dict[str, object]]:
        p = sample_shares(uploads)
        tau = {device: self.steps(upload.samples) for device, upload in uploads.items()}
        tau_eff = sum((p[device] * tau[device] for device in uploads), Fraction())
        return {device: p[device] * tau_eff / tau[device] for device in uploads}, {"tau_eff": float(tau_eff)}

    def steps(self, samples: int) -> int:
        """Return tau_i, the minibatches of a round on a device with so many records."""
        return self.hyper.local_epochs * -(-samples // self.hyper.batch_size)

"""The payload ledger: bytes of FP32 tensors per round, as the paper counts them (appendix "Communication cost").

Nothing but the numbers themselves counts here: no encoding, no headers, no acknowledgements. Those have ledgers of
their own, and the three are never added up.
"""

from collections.abc import Sequence
from typing import Final

from edge_client.errors import ConfigError
from edge_client.methods.gca import upload_size
from sim.config.study import LOCAL

FLOAT_BYTES = 4

PARAMETER_SHARING: Final = frozenset({"parameter_sharing", "fedavg", "fedprox", "fednova", "dp_fedavg"})
"""Methods whose devices and server exchange all P parameters; the paper tabulates them as one."""

BANK_UPLOADED_CODES = 3_460
"""What 20 shards of bank's 34,633 training normals upload at rho = 0.1."""

BANK_UPLOADED_CODES_PUBLISHED = 3_960
"""What the paper's Table 11 prints instead. No split the text describes yields it; perhaps a slip of one digit."""


def uploaded_codes(upload_fraction: float, samples: Sequence[int]) -> int:
    """Return U, the codes of one round: the sum of floor(rho * N_i) over devices (Algorithm 1, upload)."""
    return sum(upload_size(upload_fraction, n) for n in samples)


def payload_bytes(
    method: str,
    *,
    devices: int,
    uploaded_codes: int,
    latent_dim: int,
    components: int,
    parameters: int,
    participants: int | None = None,
) -> tuple[int, int]:
    """Return (up, down) in bytes per round, summed over all devices, of which `participants` take part (None: all).

    gca: B_up = 4 U d_z and B_down = 4 C K (d_z + 1), the centroids and their supports, all K of them non-empty.
    Parameter sharing: 4 C P each way; with m of C devices taking part 4 m P up and still 4 C P down, as each device
    keeps up with the common model. single and centralized: nothing (that the records of all were brought together
    before is in no round). Raises ConfigError for an unknown method.
    """
    active = devices if participants is None else participants
    if method == "gca":
        return (
            FLOAT_BYTES * uploaded_codes * latent_dim,
            FLOAT_BYTES * active * components * (latent_dim + 1),
        )
    if method in PARAMETER_SHARING:
        return FLOAT_BYTES * active * parameters, FLOAT_BYTES * devices * parameters
    if method in LOCAL:
        return 0, 0
    known = ", ".join(sorted({"gca"} | LOCAL | PARAMETER_SHARING))
    raise ConfigError(f"method {method!r} is unknown; choose one of {known}")

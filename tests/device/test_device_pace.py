"""What `gca device` derives from the rates it is told, against figures worked out by hand."""

import pytest

from edge_client.__main__ import _pace, parser
from edge_client.errors import ConfigError

MUST = ("--broker", "mqtt://127.0.0.1", "--run", "r", "--id", "a", "--data", "x.npz")


def pace(*options: str) -> tuple[int, int]:
    """Return (chunk size, keepalive)."""
    chosen = _pace(parser().parse_args([*MUST, *options]))
    return chosen["chunk_size"], chosen["keepalive"]


@pytest.mark.parametrize(
    ("options", "derived"),
    [
        ((), (65_536, 60)),
        # A quarter of 60 s at 1 kbit/s is 1,875 B on the wire: two segments of 52 B header, and below, not at it.
        (("--up-rate", "1000"), (1_770, 60)),
        (("--up-rate", "1e6", "--down-rate", "1000"), (1_770, 60)),
        # Twice two chunks of 65,536 B with 46 headers at 10 kbit/s: 4 x 54.3424 s = 217.4 s.
        (("--up-rate", "10000", "--chunk-size", "65536"), (65_536, 218)),
        (("--up-rate", "1000", "--keepalive", "300"), (1_770, 300)),
        # 256 B is the least: 4 x 308 x 8 / 100 = 98.56 s.
        (("--down-rate", "100"), (256, 99)),
    ],
)
def test_chunks_and_keepalive_follow_from_the_slower_rate(options: tuple[str, ...], derived: tuple[int, int]) -> None:
    assert pace(*options) == derived


@pytest.mark.parametrize("options", [("--chunk-size", "255"), ("--keepalive", "0"), ("--up-rate", "inf")])
def test_what_no_device_can_have_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"^{options[0]} "):
        pace(*options)

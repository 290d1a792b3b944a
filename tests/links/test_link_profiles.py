"""Named and spelled-out links, and the keepalive and chunk size that follow from them."""

import tomllib
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import ConfigError
from sim.config.hardware import hardware, hardwares, radio, radios
from sim.links.figures import Figure
from sim.links.link import LinkState, plan
from sim.links.loss import loss_limited_rate
from sim.links.profiles import (
    LinkProfile,
    broadcast_chunk,
    chunk_size,
    downlink,
    keepalive,
    link,
    parse_link,
    profile,
    profiles,
    uplink,
)


def test_a_profile_carries_its_figures_and_where_they_come_from():
    nb1 = profile("nbiot-nb1-peak")
    assert (nb1.up, nb1.down, nb1.rtt) == (62_000, 26_000, 1.6)
    assert nb1.provenance["up"].tag == "seen"
    assert "https://haltian.com/resource/nb1-vs-nb2-complete-comparison-table-and-overview/" in nb1.sources
    assert (uplink(nb1).rate, downlink(nb1).rate, uplink(nb1).delay) == (62_000, 26_000, 0.8)


def test_every_figure_has_an_origin_and_every_source_is_used():
    content = tomllib.loads((files("configs") / "links.toml").read_text())
    used = {url for p in profiles().values() for url in p.sources}
    assert used == set(content["sources"].values())
    for p in profiles().values():
        assert p.note
        for figure in ("up", "down", "rtt", "jitter", "loss", "mss", "header"):
            origin = p.provenance[figure]
            assert origin.sources if origin.tag == "seen" else origin.note


def test_every_radio_that_a_link_names_has_its_power():
    assert {p.radio for p in profiles().values() if p.radio} <= set(radios())


@pytest.mark.parametrize("name", ["none", "loopback"])
def test_unshaped_profiles(name):
    assert uplink(profile(name)).rate is None
    assert downlink(profile(name)).delay == 0


# Seconds for 187 kB and 1.36 MB up, 187 kB and 1.36 MB down, by the closed form of headers, rate and slow start.
CLOSED_FORM = [
    ("nbiot-nb1-peak", "up", 26, 183),
    ("nbiot-nb1-peak", "down", 60, 434),
    ("nbiot-nb2-peak", "up", 11, 73),
    ("nbiot-nb2-peak", "down", 14, 90),
    ("lte-m-hd-peak", "up", 4.2, 30),
    ("lte-m-fd-peak", "down", 2.0, 14),
    ("2g-edge", "up", 8.4, 57),
    ("2g-edge", "down", 7.2, 48),
    ("3g", "up", 2.3, 15),
    ("3g", "down", 1.5, 7.6),
    ("lte-cat1-peak", "up", 0.41, 2.4),
    ("lte-cat1-peak", "down", 0.32, 1.3),
    ("thread-1hop-field", "up", 12, 90),
    ("lorawan-sf7-peak", "up", 290, 2105),
    ("lorawan-sf12-field", "up", 209 * 3600, 1519 * 3600),
]


@pytest.mark.parametrize(("name", "way", "small", "large"), CLOSED_FORM)
def test_transfer_times_of_the_profiles(name, way, small, large):
    spec = (uplink if way == "up" else downlink)(profile(name))
    for nbytes, seconds in ((187_000, small), (1_360_000, large)):
        _, p = plan(LinkState(spec), nbytes, 0.0)
        assert p.arrive == pytest.approx(seconds, rel=0.06)


@pytest.mark.parametrize(
    ("name", "close"), [("nbiot", "nbiot-field"), ("LTE", "lte"), ("lorawan-sf7", "lorawan-sf7-field")]
)
def test_an_unknown_link_names_close_matches(name, close):
    with pytest.raises(ConfigError, match=f"did you mean .*{close}"):
        profile(name)


@pytest.mark.parametrize(
    ("text", "up", "down", "rtt"),
    [
        ("256kbit/1mbit/100ms", 256e3, 1e6, 0.1),
        ("50kbit", 50e3, 50e3, 0.0),
        ("50kbit/1.5s", 50e3, 50e3, 1.5),
        ("250bit/2Mbit", 250, 2e6, 0.0),
    ],
)
def test_links_spelled_out(text, up, down, rtt):
    for p in (parse_link(text), link(text)):
        assert (p.up, p.down, p.rtt) == (up, down, pytest.approx(rtt))
        assert p.provenance["up"].tag == "assumption"


def test_link_takes_names_too():
    assert link("lte") is profile("lte")


@pytest.mark.parametrize(
    "text", ["", "50kB", "50", "100ms", "0kbit", "-5kbit", "1mbit/2mbit/3mbit", "1mbit/1s/1s", "1s/1mbit", "nanbit"]
)
def test_links_misspelled_are_refused_with_the_mend(text):
    with pytest.raises(ConfigError, match=r"256kbit/1mbit/100ms|positive rate"):
        parse_link(text)


@pytest.mark.parametrize(
    "bad", [{"loss": 1.0}, {"loss": -0.1}, {"rtt": 1e9}, {"up": 0}, {"down": -5.0}, {"up": None, "half_duplex": True}]
)
def test_impossible_profiles_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match="link odd"):
        LinkProfile(**{"name": "odd", "up": 1e6, "down": 1e6, **bad})


@pytest.mark.parametrize("name", profiles())
def test_chunks_and_keepalive_of_every_profile(name):
    p = profile(name)
    chunk = chunk_size(p)
    seconds = keepalive(p, chunk)
    assert 256 <= chunk <= 65_536
    assert 60 <= seconds <= 65_535
    rate = min(p.up or float("inf"), p.down or float("inf"))
    assert chunk * 8 / rate < seconds / 4
    assert seconds > 2 * 2 * chunk * 8 / rate


@given(st.floats(1, 1e9), st.floats(1, 1e9), st.floats(0, 10))
def test_chunks_and_keepalive_of_any_link(up, down, rtt):
    p = LinkProfile(name="any", up=up, down=down, rtt=rtt)
    chunk = chunk_size(p)
    seconds = keepalive(p, chunk)
    assert 256 <= chunk <= 65_536
    assert seconds > 4 * (chunk + 52) * 8 / min(up, down)
    if chunk > 256:  # sized for the default, which only round trips may stretch
        assert seconds <= 60 + 2 * rtt + 1


def test_keepalive_by_hand():
    """50 kbit/s: 64 KiB in 46 segments are 67,928 B, four times 10.9 s. 250 bit/s: 416 + 52 B are 14.98 s."""
    assert chunk_size(parse_link("50kbit")) == 65_536
    assert keepalive(parse_link("50kbit"), 65_536) == 60
    assert keepalive(parse_link("10kbit"), 65_536) == 218  # 4 * 54.3424 s = 217.4 s
    assert chunk_size(parse_link("250bit")) == 416
    assert keepalive(parse_link("250bit"), 416) == 60
    assert chunk_size(parse_link("100bit")) == 256
    assert keepalive(parse_link("100bit"), 256) == 99  # 4 * 308 * 8 / 100 = 98.56 s
    with pytest.raises(ConfigError, match="MQTT allows 65535"):
        keepalive(parse_link("1bit"), 65_536)


# Seconds measured over links that drop packets at random (each way, 100 ms round trip).
LOSSY = [(10e6, 0.01, 1_360_000, 8.85), (1e6, 0.01, 1_360_000, 11.84), (256e3, 0.01, 187_000, 6.13)]


@pytest.mark.parametrize(("rate", "loss", "nbytes", "seconds"), LOSSY)
def test_loss_slows_long_transfers_as_measured(rate, loss, nbytes, seconds):
    p = LinkProfile(name="lossy", up=rate, down=rate, rtt=0.1, loss=loss)
    assert plan(LinkState(uplink(p)), nbytes, 0.0)[1].arrive == pytest.approx(seconds, rel=0.08)


def test_loss_formula_by_hand():
    """p = 0.06, 0.1 s: 0.1 * sqrt(0.04) + 0.3 * 3 * sqrt(0.0225) * 0.06 * 1.1152 = 0.0290331 s per segment."""
    assert loss_limited_rate(0.06, 0.1, 1500) == pytest.approx(12_000 / 0.029033120)
    assert loss_limited_rate(0.0, 0.1) == loss_limited_rate(0.06, 0.0) == float("inf")


def test_figures_without_grounds_are_refused():
    for figure, complaint in (
        (Figure(1, "seen"), "must cite"),
        (Figure(1, "assumption"), "must say"),
        (Figure(1, "seen", ("nowhere",)), "unknown source"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            figure.origin({"here": "https://example.org"}, "links.x.up")


def test_boards_and_their_training_speed():
    assert [hardware(n).slowdown for n in ("pi-5", "pi-4b", "pi-3b-plus", "pi-zero-2-w")] == [1, 2, 5, 7]
    assert hardware("pi-zero-2-w").memory == 512_000_000
    assert hardware("host").slowdown is None
    reference = hardware("pi-5").training_flops
    assert reference == pytest.approx(1000 * 5.3e9 * 3 * 2 / (12 * 60), rel=0.01)
    for board in hardwares().values():
        if board.slowdown:
            assert board.training_flops == pytest.approx(reference / board.slowdown, rel=0.02)
            assert board.idle_power < board.active_power
            assert set(board.provenance) >= {"slowdown", "idle_power", "active_power"}


def test_unknown_boards_and_radios_name_close_matches():
    with pytest.raises(ConfigError, match=r"did you mean .*pi-4b"):
        hardware("pi4")
    with pytest.raises(ConfigError, match="choose from ble"):
        radio("xyz")
    assert radio("nbiot").transmit == 0.543


NO_LINKS = ["0", "-5", "7", "0kbit", "-5kbit", "256kbit/0bit", "256kbit/-1kbit/10ms", ".5", "1.2.3"]


@pytest.mark.parametrize("text", NO_LINKS)
def test_figures_that_make_no_link_are_told_as_figures(text: str) -> None:
    """Nobody looks for a profile of the name "0": say what is wrong with it as a rate."""
    with pytest.raises(ConfigError, match=r"does not fit; write UP/DOWN|carries nothing; write UP/DOWN") as told:
        link(text)
    assert "unknown" not in str(told.value)


@pytest.mark.parametrize("text", ["3g-fst", "fast", "4gg", ""])
def test_names_that_nobody_knows_are_told_as_names(text: str) -> None:
    with pytest.raises(ConfigError, match="unknown link"):
        link(text)


def test_a_broadcast_is_cut_for_the_downlink_alone() -> None:
    """50 kbit/s for 15 s are 93,750 B, more than 64 KiB; 4 kbit/s are 7,500 B, of which 5 segments take 52 B each."""
    assert broadcast_chunk(parse_link("1bit/50kbit")) == 65_536
    assert broadcast_chunk(parse_link("1bit/4kbit")) == 7_500 - 1 - 5 * 52

"""Which studies a grid has and how they are told apart."""

from pathlib import Path

import pytest

from edge_client.errors import ConfigError
from sim.config.hardware import OWN, hardwares
from sim.grid.cells import cells, parse_over


def test_every_combination_is_a_cell_and_the_last_key_varies_fastest() -> None:
    over = parse_over(["k=10,20", "training.init=shared,independent"])
    grid = cells("paper/magic", {}, over)
    assert [(c.study.clustering.components, c.study.training.init) for c in grid] == [
        (10, "shared"), (10, "independent"), (20, "shared"), (20, "independent")
    ]  # fmt: skip
    assert grid[0].label == "clustering.components=10, training.init=shared"


def test_a_key_given_twice_adds_up() -> None:
    assert parse_over(["k=10", "k=20"]) == {"clustering.components": (10, 20)}


def test_a_cell_is_named_by_its_study_alone() -> None:
    by_sweep = cells("paper/magic", {}, {"seed": (100,)})[0]
    as_configured = cells("paper/magic", {}, {})[0]
    other = cells("paper/magic", {"training.gamma": 0.5}, {})[0]
    assert by_sweep.name == as_configured.name != other.name
    assert by_sweep.name.startswith("magic-gca-100-")


def test_what_a_trace_or_an_own_board_says_belongs_to_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, boards = tmp_path / "bus.csv", tmp_path / "boards.toml"
    monkeypatch.setenv(OWN, str(boards))
    names = set()
    for kbit in (10, 20):
        trace.write_text(f"second,up_kbit,down_kbit\n0,{kbit},10\n")
        names.add(cells("paper/magic", {"link": f"trace:{trace}"}, {})[0].name)
        figure = f'{{ value = {kbit}e9, tag = "assumption", note = "a guess" }}'
        boards.write_text(f'[boards.mine]\nnote = "mine"\ntraining_flops = {figure}\n')
        hardwares.cache_clear()
        names.add(cells("paper/magic", {"hardware": "mine"}, {})[0].name)
    hardwares.cache_clear()
    assert len(names) == 4


@pytest.mark.parametrize(("over", "names"), [("link=none,nbiot-feld", "nbiot-field"), ("hardware=pi-4", "pi-4b")])
def test_links_and_boards_that_nobody_knows_are_refused_before_anything_runs(over: str, names: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean .*{names}"):
        cells("paper/magic", {}, parse_over([over]))


@pytest.mark.parametrize("text", ["", "k", "k=", "=1"])
def test_what_is_no_grid_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_over([text])


def test_an_unknown_key_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="trainning"):
        cells("paper/magic", {}, parse_over(["trainning.gamma=1"]))


def test_a_grid_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="cells"):
        cells("paper/magic", {}, {"seed": range(200), "rounds": range(1, 200)})

"""Studies whose devices differ in link and board."""

from pathlib import Path

import pytest

from broker_server.study.store import StudyStore
from edge_client.errors import ConfigError
from sim.config.devices import device_boards, device_links, device_names, name_of
from sim.config.study import Study, dump, load_study
from sim.costs.energy import powers
from sim.costs.plan import plan_study
from sim.data import load
from sim.emulation.study import run_study
from sim.report.study import read_study
from sim.screen.progress import Quiet

LINKS = ["256kbit/1mbit/100ms", "2mbit/4mbit/20ms", "50kbit/200ms"]
BOARDS = ["pi-zero-2-w", "pi-5"]


def unlike(**overrides: object) -> Study:
    given = {"devices": 5, "rounds": 1, "link": LINKS, "hardware": BOARDS, "clock": "virtual",
             "training.recon_epochs": 1, "training.align_epochs": 1, "evaluation.every": "round"}  # fmt: skip
    return load_study("demo", {**given, **{key.replace("__", "."): value for key, value in overrides.items()}})


def test_names_go_round_in_the_order_of_devices() -> None:
    study = unlike()
    assert [one.name for one in device_links(study).values()] == [*LINKS, *LINKS[:2]]
    assert [one.name for one in device_boards(study).values()] == [*BOARDS, *BOARDS, BOARDS[0]]
    assert [name_of(study.link, device) for device in device_names(study)] == [*LINKS, *LINKS[:2]]
    burnt = powers(study)["dev-0004"]
    assert (burnt.link.name, burnt.board.name) == (LINKS[0], "pi-5")


def test_one_name_is_everyones_and_the_pooled_model_has_the_first() -> None:
    assert {one.name for one in device_links(unlike(link="nbiot-field")).values()} == {"nbiot-field"}
    assert {device: one.name for device, one in device_boards(unlike(method="centralized", clock="real")).items()} == {
        "pooled": "pi-zero-2-w"
    }


def test_lists_survive_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(dump(unlike()))
    assert load_study(tmp_path / "study.toml") == unlike()


@pytest.mark.parametrize("wrong", [[], ["nbiot-field", 3], 3])
def test_what_is_no_list_of_names_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"command line: link: .* allowed: text of 1 to 200 characters or a list"):
        unlike(link=wrong)


def test_an_unknown_name_in_a_list_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown link 'nbiot-fiel': did you mean nbiot-field"):
        run_study(unlike(link=["none", "nbiot-fiel"]), tmp_path / "study", Quiet())
    assert not (tmp_path / "study").exists()


def test_a_plan_is_that_of_the_slowest_device() -> None:
    data = load("breast_cancer", offline=True)
    mixed, slow, quick = (plan_study(unlike(link=link), data) for link in (LINKS, LINKS[2], LINKS[1]))
    assert mixed.transfer_s == pytest.approx(slow.transfer_s, rel=0.01) and mixed.transfer_s > 3 * quick.transfer_s
    assert mixed.payload == slow.payload == quick.payload


def test_devices_take_as_long_as_their_own_links_and_boards(tmp_path: Path) -> None:
    run_study(unlike(), tmp_path / "study", Quiet())
    with StudyStore.open(tmp_path / "study") as store:
        rows = store.rows("SELECT stage, device, seconds FROM stages WHERE round = 1 ORDER BY device")
    spent = {(stage, int(device[-1])): seconds for stage, device, seconds in rows}
    # Boards go 7 : 1, shards differ by one record at most; devices 1 and 4 share a link, 2 and 5 the quick one.
    assert spent["reconstruction", 1] == pytest.approx(spent["reconstruction", 3], rel=0.05)
    assert spent["reconstruction", 1] == pytest.approx(44 / 6.3 * spent["reconstruction", 2], rel=0.05)
    assert spent["upload", 1] == pytest.approx(spent["upload", 4], rel=0.05)
    assert spent["upload", 2] < spent["upload", 1] < spent["upload", 3]
    report = read_study(tmp_path / "study")
    assert report.link_name == ", ".join(LINKS)
    assert [one.name for one in report.boards.values() if one] == BOARDS

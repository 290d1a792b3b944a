"""What a report computes of a study, against figures worked out by hand."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from report.report_studies import ACCURACY, CURVE, STAGES, with_centroids, written

from sim.links.profiles import link
from sim.report.build import build_report, labels
from sim.report.curve import curve, first_at, targets
from sim.report.device_figures import timeline
from sim.report.figure import fill
from sim.report.latent import broadcasts
from sim.report.study import read_study
from sim.report.timeline import device_rounds, outages, quantiles
from sim.report.totals import PARTS, costs, parts


def test_stages_stand_where_the_device_says(tmp_path: Path) -> None:
    """Reported at 15 s: reconstruction 2 + half of the evaluation 2 + upload 3 + wait 5 + alignment 1 + the other half
    2 began at 0. Round 2, reported at 30 s, was opened at 12 s, but the device was busy until 15 s."""
    first, second = device_rounds(read_study(written(tmp_path, devices={"d1": ACCURACY["d1"]})))
    assert [(one.stage, one.begin, one.end) for one in first.stages] == [
        ("reconstruction", 0, 2), ("evaluate", 2, 4), ("upload", 4, 7), ("wait", 7, 12), ("alignment", 12, 13),
        ("evaluate", 13, 15),
    ]  # fmt: skip
    assert (second.stages[0].begin, second.stages[-1].end) == (15, 30)


def test_stages_that_nobody_knows_are_shown_like_others(tmp_path: Path) -> None:
    stages = {"upload": 3.0, "adoption": 1.0, "polishing": 1.0}
    first = device_rounds(read_study(written(tmp_path, stages=stages)))[0]
    assert [one.stage for one in first.stages] == ["upload", "adoption", "polishing"]
    assert (first.stages[0].begin, first.stages[0].end) == (10, 13)


def test_a_wait_ends_in_a_download_once_the_broadcast_is_out(tmp_path: Path) -> None:
    """Round 1 is published at 12 s, when the wait of 7 to 12 s ends. Published at 9 s, the last 3 s are a download; and
    all of it is, where the device waited from after the publication on."""
    study = read_study(written(tmp_path, devices={"d1": ACCURACY["d1"]}))
    for published, expected in ((9.0, [("wait", 7, 9), ("download", 9, 12)]), (6.0, [("download", 7, 12)])):
        earlier = replace(study, rounds={1: replace(study.rounds[1], published=published)})
        (one,) = device_rounds(earlier)
        found = [(s.stage, s.begin, s.end) for s in one.stages if s.stage in ("wait", "download")]
        assert found == expected


def test_outages_are_those_of_the_devices_own_link(tmp_path: Path) -> None:
    study = read_study(written(tmp_path, link="none"))
    broken = structs.replace(link("none"), outages=((1.0, 3.0), (100.0, 200.0)))
    study = replace(study, links={"none": link("none"), "broken": broken})
    assert outages(study, "dev-0001") == [] and outages(study, "dev-0002") == [(1.0, 3.0), (100.0, 200.0)]
    parts = device_rounds(study)
    study = replace(study, links={"broken": broken})
    drawn = timeline([study], [parts], ["one"])
    assert [(row["device"], row["begin"], row["end"]) for row in drawn.datasets["down"]] == [
        ("d1", 1.0, 3.0), ("d2", 1.0, 3.0)  # the second began after the last report, at 30 s
    ]  # fmt: skip


def test_quantiles_of_rounds_and_stages(tmp_path: Path) -> None:
    found = {what: (values, count) for what, values, count in quantiles(read_study(written(tmp_path)))}
    # Rounds took 12 and 8 s: quantile q lies at 8 + 4 q.
    assert found["round"] == (pytest.approx((8.2, 9, 10, 11, 11.8)), 2)
    assert found["upload"] == ((3.0,) * 5, 4)
    assert set(found) == {"round", *STAGES}


def test_the_curve_has_bands_costs_and_marks(tmp_path: Path) -> None:
    """Each round moves 2 devices * (24 + 8) payload, 2 * 170 message and 2 * (234 + 226) wire bytes."""
    points = curve(read_study(written(tmp_path)))
    assert [(one.point.round, one.point.phase, one.point.epoch) for one in points] == list(CURVE)
    assert [one.rounds for one in points] == [0.5, 1, 1.5, 2]
    assert points[0].bands["accuracy"] == pytest.approx((0.525, 0.725))  # of 0.5 and 0.75
    assert points[0].bands["average_precision"] is None
    assert [one.at.payload_bytes for one in points] == [0, 64, 64, 128]
    assert [one.at.message_bytes for one in points] == [0, 340, 340, 680]
    assert [one.wire for one in points] == [0, 920, 920, 1840]
    assert [one.free for one in points] == [True, False, False, False]
    assert [one.last for one in points] == [False, True, False, True]
    assert [one.peak for one in points] == [False, False, True, False]


def test_without_counted_links_there_is_no_wire(tmp_path: Path) -> None:
    study = read_study(written(tmp_path, wire=False))
    assert {one.wire for one in curve(study)} == {None}
    assert costs(study, curve(study), []).wire is None
    assert {part for _, part, _ in parts(study)} == set(PARTS[:3])


def test_bytes_by_part(tmp_path: Path) -> None:
    """Up, of 2 devices and 2 rounds: 4 * (24 tensors, 76 around them, 10 control) = 4 * 110 of a stream of 4 * 130."""
    found = parts(read_study(written(tmp_path)))
    assert found == [
        ("up", "tensors", 96), ("up", "message envelopes", 304), ("up", "control messages", 40),
        ("up", "MQTT framing", 80), ("up", "TCP/IP headers", 208), ("up", "TCP acknowledgements", 208),
        ("down", "tensors", 32), ("down", "message envelopes", 208), ("down", "control messages", 0),
        ("down", "MQTT framing", 40), ("down", "TCP/IP headers", 208), ("down", "TCP acknowledgements", 416),
    ]  # fmt: skip


def test_first_to_reach_and_never(tmp_path: Path) -> None:
    points = curve(read_study(written(tmp_path)))
    reached = first_at(points, 0.7)
    assert reached is not None and (reached.point.round, reached.point.phase) == (2, "recon")
    assert first_at(points, 0.76) is None


@pytest.mark.parametrize(
    ("peaks", "wanted"),
    [
        ([0.834, 0.6], [0.7, 0.75, 0.8]),
        ([0.85], [0.75, 0.8, 0.85]),
        ([1.0], [0.9, 0.95, 1.0]),
        ([0.07], [0.05]),
        ([], []),
    ],
)
def test_targets_are_round_and_within_reach(peaks: list[float], wanted: list[float]) -> None:
    assert targets(peaks) == pytest.approx(wanted)


def test_weights_of_centroids(tmp_path: Path) -> None:
    """Supports (1, 9, 20) weigh (324, 60, 27) / 137 with the paper's gamma 1 and w_max 6; equal ones weigh 1."""
    first, second = broadcasts(read_study(with_centroids(written(tmp_path, link="none"))))
    np.testing.assert_allclose(first.weights, np.array([324, 60, 27]) / 137, rtol=1e-5)
    np.testing.assert_allclose(second.weights, 1, rtol=1e-5)


def test_labels_say_what_differs_and_nothing_else(tmp_path: Path) -> None:
    folders = [written(tmp_path / "a", link="none"), written(tmp_path / "b", link="none", method="fedavg")]
    assert labels([read_study(one) for one in folders]) == ["gca · none", "fedavg · none"]
    folders.append(written(tmp_path / "c", link="none"))
    assert labels([read_study(one) for one in folders]) == ["gca · none · a", "fedavg · none · b", "gca · none · c"]


def test_what_a_configuration_says_of_links_and_data_is_not_said_of_real_devices(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", link="nbiot-field", wire=False)
    study = read_study(folder)
    assert labels([study]) == ["gca · real links"] and (study.links, study.boards) == ({}, {})
    assert all(instant.energy is None for instant in study.instants)
    text = build_report([folder])[0].read_text()
    assert "Accuracy and its cost on the devices&#x27; own records" in text and "These devices were real" in text
    assert "link nbiot-field:" not in text and labels([read_study(written(tmp_path / "b", link="none"))]) == [
        "gca · none"
    ]


def test_labels_of_two_datasets_name_them(tmp_path: Path) -> None:
    one, other = (read_study(written(tmp_path / name, link="none", method=method)) for name, method in
                  (("a", "gca"), ("b", "fedavg")))  # fmt: skip
    other = replace(other, run=replace(other.run, dataset="magic"))
    assert labels([one, other]) == ["gca · none · breast_cancer", "fedavg · none · magic"]


@given(st.text(), st.text(), st.integers())
def test_blanks_are_filled_but_domains_are_data(text: str, around: str, number: int) -> None:
    spec = {"field": "$x", "title": f"{around}$x", "domain": ["$x", text], "deep": [{"value": "$n"}]}
    filled = fill(spec, {"$x": "wire", "$n": number})
    assert filled["field"] == "wire" and filled["deep"] == [{"value": number}]
    assert filled["domain"] == ["$x", text]
    assert filled["title"].endswith("wire")


def test_csv_holds_the_curve_the_totals_and_the_parts(tmp_path: Path) -> None:
    study = written(tmp_path / "=1+1", link="none")  # a name that a spreadsheet would take for a formula
    files = build_report([study], tmp_path / "r.html", csv=True)
    assert [path.name for path in files] == ["r.html", "r-curve.csv", "r-costs.csv", "r-bytes.csv"]
    tables = [list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for path in files[1:]]
    last = tables[0][-1]
    assert (last["round"], last["phase"], last["accuracy"], last["wire_bytes"]) == ("2", "align", "0.625", "1840")
    assert last["average_precision"] == last["joules"] == ""
    assert (tables[1][0]["final_accuracy"], tables[1][0]["payload_bytes"]) == ("0.625", "128")
    assert tables[1][0]["full_exchange_payload_bytes"] == ""  # no models were left
    assert sum(int(row["bytes"]) for row in tables[2]) == 1840
    assert not any(cell.startswith("=") for table in tables for row in table for cell in row.values())


def test_png_of_every_figure(tmp_path: Path) -> None:
    files = build_report([with_centroids(written(tmp_path / "one", link="none"))], tmp_path / "r.html", png=True)
    names = {"accuracy", "bytes", "round-times", "timeline", "centroids"}
    assert {path.name for path in files[1:]} == {f"r-{name}.png" for name in names}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files[1:])

"""The published tables, and what is said of a figure of ours beside them."""

import pytest

from broker_server.study.results import Point
from edge_client.errors import ConfigError
from sim.reproduction.measures import Taken
from sim.reproduction.published import TITLES, Figure, figures
from sim.reproduction.tables import Protocol, wanted
from sim.reproduction.verdict import Compared, orders
from sim.screen.summary import judged


def taken(accuracy: float) -> Taken:
    return Taken(accuracy, "r1/recon1", 1.0)


def compared(dataset: str, label: str, published: float, *ours: float, std: float = 0.1) -> Compared:
    return Compared(Figure("table06", dataset, label, published, std), [taken(one) for one in ours])


def test_the_tables_have_the_cells_that_the_paper_prints() -> None:
    sizes = {table: len(figures(table)) for table in TITLES}
    assert sizes == {"table04": 28, "table05": 14, "table06": 49, "table07": 28, "table08": 28, "table09": 28,
                     "table10_ntmse": 35, "table10_excess_cosine": 35, "table13": 20, "table14": 25}  # fmt: skip


def test_a_figure_asks_for_its_own_study() -> None:
    protocol = Protocol(seeds=(100, 200), rounds=3, datasets=("magic",))
    by_label = {figure.label: cells for figure, cells in wanted(["table14"], protocol).items()}
    assert set(by_label) == {"gca", "fedavg", "fedprox", "fednova", "dp_fedavg"}
    studies = [cell.study for cell in by_label["gca"]]
    assert [study.seed for study in studies] == [100, 200]
    assert {study.data.partition for study in studies} == {"non_iid"}
    assert {study.clustering.components for study in studies} == {80}  # K* of Table 3
    assert {study.rounds for study in studies} == {3}


def test_tables_share_the_studies_they_have_in_common() -> None:
    protocol = Protocol(datasets=("academic",))
    names = {table: {cell.name for cells in wanted([table], protocol).values() for cell in cells} for table in TITLES}
    assert len(names["table04"] & names["table06"]) == 3  # GCA at K*, three seeds
    assert names["table05"] & names["table06"]


def test_what_was_left_out_of_the_protocol_is_said() -> None:
    assert Protocol().cut == ""
    assert Protocol(seeds=(100,), rounds=10).cut == "10 of 100 rounds; seeds 100 of 100, 200, 300"
    assert Protocol(chosen={"training.optimizer": "reset"}).cut == "training.optimizer=reset"


@pytest.mark.parametrize(
    ("ours", "std", "verdict"),
    [
        ((64.4, 64.6), 0.1, "reproduced"),
        ((65.2,), 0.1, "higher"),
        ((63.9,), 0.4, "reproduced"),
        ((63.9,), 0.1, "lower"),
    ],
)
def test_a_verdict_is_two_deviations_or_half_a_point(ours: tuple[float, ...], std: float, verdict: str) -> None:
    assert compared("magic", "gca", 64.5, *ours, std=std).verdict == verdict


def test_mean_and_deviation_are_over_seeds() -> None:
    one = compared("magic", "gca", 64.0, 63.0, 64.0, 66.5)
    assert one.mean == pytest.approx(64.5) and one.difference == pytest.approx(0.5)
    assert one.std == pytest.approx(1.8027756)  # (2.25 + 0.25 + 4.0) / 2, rooted
    assert compared("magic", "gca", 64.0, 63.0).std is None
    assert compared("magic", "gca", 64.0).verdict == "no figure"


def test_a_published_order_holds_or_fails_by_dataset() -> None:
    table = [
        compared("academic", "gca", 65.0, 64.0), compared("academic", "single", 64.0, 63.0),
        compared("adult", "gca", 65.0, 62.0), compared("adult", "single", 64.0, 63.0),
        compared("magic", "gca", 60.0, 62.0), compared("magic", "single", 64.0, 63.0),
        compared("bank", "gca", 65.0), compared("bank", "single", 64.0),
    ]  # fmt: skip
    above, below = orders(table, "gca")
    assert (above.claimed, above.holds, above.fails) == (("academic", "adult", "bank"), ("academic",), ("adult",))
    assert (below.better, below.claimed, below.holds) == ("single", ("magic",), ("magic",))
    assert "holds in 1 of the 2 that ran, not in adult" in above.text


def test_a_table_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="table99"):
        figures("table99")


def test_gca_is_judged_at_reconstruction_epochs_and_the_others_at_round_ends() -> None:
    def points(*instants: tuple[int, str, int]) -> list[Point]:
        return [Point(*instant, 2, 0.5, None, None, None) for instant in instants]

    gca = points((1, "recon", 1), (1, "recon", 2), (1, "align", 1), (2, "recon", 1))
    assert judged(gca, "gca") == [gca[0], gca[1], gca[3]]
    fedavg = points((1, "recon", 1), (1, "recon", 2), (1, "global", 1), (2, "recon", 1), (2, "global", 1))
    assert judged(fedavg, "fedavg") == [fedavg[2], fedavg[4]]
    single = points((1, "recon", 1), (1, "recon", 2), (2, "recon", 1))
    assert judged(single, "single") == [single[1], single[2]]

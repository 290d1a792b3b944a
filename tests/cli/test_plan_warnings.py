"""What `gca plan` refuses, what it warns of, and the parts of its estimate that can be worked out by hand."""

import json
from pathlib import Path

import pytest

from sim.config.study import Study, load_study
from sim.costs.plan import plan_study, warnings
from sim.data import Dataset, load
from sim.fleet.calibration import speed_here


@pytest.fixture(scope="module")
def breast_cancer() -> Dataset:
    return load("breast_cancer", offline=True)


def demo(**overrides: object) -> Study:
    return load_study("demo", {key.replace("__", "."): value for key, value in overrides.items()})


def test_days_on_a_slow_link_are_said_in_days(cli) -> None:
    # 8 uploads in parallel, each 16 codes of 4 floats: 256 B of tensors, some 450 B with their envelope. At 2.5 bit/s
    # 400 B alone take 21 minutes, and a device hears more than it says.
    said = cli("plan", "demo", "--link", "lorawan-sf12-field", "--rounds", "200")
    (line,) = [line for line in said.out.splitlines() if line.startswith("warning: ")]
    assert said.code == 0 and "days" in line and "lorawan-sf12-field" in line and "faster link" in line


def test_a_quick_study_needs_no_warning(breast_cancer) -> None:
    assert warnings(demo(), plan_study(demo(), breast_cancer)) == []


def test_a_deadline_that_no_upload_can_meet_is_warned_of(breast_cancer) -> None:
    study = demo(participation__deadline=0.5)  # the link's round trip alone is 1.6 s
    (line,) = warnings(study, plan_study(study, breast_cancer))
    assert line.startswith("participation.deadline is 0.5 s")


def test_more_devices_than_memory_are_planned_and_refused(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.emulation.workload.available_memory", lambda: 600_000_000)
    said = cli("plan", "demo", "--json")
    assert said.code == 3 and json.loads(said.out)["memory_bytes"] > 600_000_000
    assert said.err.count("\n") == 1 and "0.6 GB are free" in said.err and "--devices" in said.err


def test_half_the_devices_upload_parameters_and_all_keep_up(breast_cancer) -> None:
    whole = plan_study(demo(method="fednova"), breast_cancer)
    half = plan_study(demo(method="fednova", participation__fraction=0.5), breast_cancer)
    assert (half.payload.up, half.payload.down) == (whole.payload.up // 2, whole.payload.down)
    assert half.payload == half.full_exchange
    # Besides the broadcast each device hears two states, and who took part an acceptance of some 60 bytes.
    assert half.message.up == whole.message.up // 2 and 0 < whole.message.down - half.message.down < 4 * 100


def test_a_link_that_changes_is_planned_as_it_begins_and_says_so(breast_cancer, tmp_path: Path) -> None:
    """Which is four times as fast as what comes two minutes later."""
    trace = tmp_path / "bus.csv"
    trace.write_text("second,up_kbit,down_kbit\n0,40,80\n120,10,20\n")
    changing, steady = demo(link=f"trace:{trace}/100ms"), demo(link="40kbit/80kbit/100ms")
    planned = plan_study(changing, breast_cancer)
    assert planned.transfer_s == plan_study(steady, breast_cancer).transfer_s
    (note,) = [note for note in planned.notes if "changes with time" in note]
    assert note.endswith("at 40 kbit/s up, 80 kbit/s down")
    assert not any("changes with time" in note for note in plan_study(steady, breast_cancer).notes)


@pytest.mark.parametrize("method", ["single", "centralized"])
def test_without_a_network_nothing_moves(breast_cancer, method: str) -> None:
    planned = plan_study(demo(method=method, link="nbiot-field", participation__deadline=1e-6), breast_cancer)
    for count in (planned.payload, planned.message, planned.wire):
        assert (count.up, count.down) == (0, 0)
    assert planned.transfer_s == 0 and planned.full_exchange.up == 8 * 4 * planned.parameters
    assert planned.notes[-1 - (method == "centralized")].startswith(f"method {method} uses no network")
    assert ("brought to one place" in planned.notes[-1]) == (method == "centralized")
    assert warnings(demo(method=method), planned) == []


def test_ten_epochs_on_all_weights_or_five_and_five_on_the_encoder(breast_cancer) -> None:
    """On a board of known speed: F per epoch and record on all weights, and half of that on the encoder alone (its
    share of this symmetric model, up to the last bias)."""
    gca = plan_study(demo(hardware="pi-zero-2-w"), breast_cancer).training_s
    fedavg = plan_study(demo(method="fedavg", hardware="pi-zero-2-w"), breast_cancer).training_s
    assert fedavg / gca == pytest.approx(10 / (5 + 2.5), rel=0.01)
    pooled = plan_study(demo(method="centralized", hardware="pi-zero-2-w"), breast_cancer).training_s
    assert pooled / fedavg == pytest.approx(8, rel=0.05)  # 8 devices of about 32 records


def test_half_the_devices_are_half_the_bytes_of_tensors(breast_cancer) -> None:
    whole, half = plan_study(demo(), breast_cancer), plan_study(demo(participation__fraction=0.5), breast_cancer)
    assert (whole.participants, half.participants) == (8, 4)
    assert (half.payload.up, half.payload.down) == (whole.payload.up // 2, whole.payload.down // 2)
    # Who does not take part still hears that a round opens and closes.
    assert half.message.up == whole.message.up // 2
    assert whole.message.down / 2 < half.message.down < whole.message.down


def test_seconds_of_training_are_flops_over_speed(breast_cancer) -> None:
    # 257 records over 8 devices: the largest shard has 33. 5 epochs each of the whole model and of the encoder, 6 flops
    # a weight and record; 9-256-64-4 has 19,268 parameters to the latents and 19,273 back, weights and biases.
    encoder, decoder = 9 * 256 + 256 + 256 * 64 + 64 + 64 * 4 + 4, 4 * 64 + 64 + 64 * 256 + 256 + 256 * 9 + 9
    flops = 6 * 33 * (5 * (encoder + decoder) + 5 * encoder)
    board = plan_study(demo(hardware="pi-zero-2-w", link="none"), breast_cancer)
    assert board.parameters == encoder + decoder
    assert board.training_s == pytest.approx(flops / (44e9 / 7), rel=0.01)
    here = plan_study(demo(link="none", devices=1, participation__minimum_devices=1), breast_cancer)
    assert here.training_s == pytest.approx(flops / 33 * 257 / speed_here(demo().training, 9))
    assert board.transfer_s == here.transfer_s == 0


def test_seconds_of_transfer_are_bytes_over_rate_and_the_round_trip(breast_cancer) -> None:
    planned = plan_study(demo(link="8kbit/8kbit/2s", devices=1, participation__minimum_devices=1), breast_cancer)
    # One device: a kilobyte a second each way, plus a second to the server and a second back. The link carries what
    # the wire ledger counts but for acknowledgements, which weigh 4 B of MQTT in 56 B segments and 52 B of TCP.
    carried = planned.transfer_s - 2
    assert (planned.message.up + planned.message.down) / 1000 < carried
    assert carried < (planned.wire.up + planned.wire.down) / 1000


def test_wire_bytes_worked_out_by_hand(breast_cancer) -> None:
    study = demo(devices=1, participation__minimum_devices=1, link="none", training__upload_fraction=0.1)
    planned = plan_study(study, breast_cancer)
    # Up: the upload in one segment, the acceptance's PUBACK, and those of open, closed and broadcast in one segment;
    # down: the upload's PUBACK with the acceptance, and the other three. TCP acknowledges every second segment.
    up_topic = len("gca/v1/breast_cancer-gca-20260101-000000-10000/up/dev-0001/50/0")
    assert planned.wire.up == planned.message.up + (3 + 2 + up_topic + 2) + 4 * 4 + 52 * (3 + 1)
    topics = ("round", "round", "dn/dev-0001/accept", "bc/50/0")
    heads = sum(2 + len("gca/v1/breast_cancer-gca-20260101-000000-10000/") + len(topic) + 2 for topic in topics)
    fixed = sum(2 if size < 128 else 3 for size in _packets(planned, heads))
    assert planned.wire.down == planned.message.down + heads + fixed + 4 + 52 * (2 + 2)


def _packets(planned, heads: int) -> list[int]:
    """All four packets down are longer than 127 B: even the shortest has a topic of 53 characters and a header."""
    assert (planned.message.down + heads) / 4 > 128
    return [128] * 4


def test_totals_are_rounds_times_a_round(cli) -> None:
    result = json.loads(cli("plan", "demo", "--rounds", "7", "--json").out)
    for ledger in ("payload_bytes", "message_bytes", "wire_bytes"):
        assert result["total"][ledger] == {way: 7 * count for way, count in result[ledger].items()}
    assert result["seconds_per_round"] == result["training_seconds"] + result["transfer_seconds"]
    assert result["file_descriptors"] > 8 and result["full_parameter_payload_bytes"]["up"] == 4 * 8 * 38_541


def test_fewer_codes_than_clusters_reduce_k_and_say_so(breast_cancer) -> None:
    study = demo(clustering__components=500)
    planned = plan_study(study, breast_cancer)
    assert planned.payload.down == 4 * 8 * planned.uploaded * 5
    assert any("K is reduced to 128" in note for note in planned.notes)


def test_an_absent_dataset_says_where_to_put_it(cli, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GCA_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")  # nothing listens there
    said = cli("plan", "paper/magic")
    assert said.code == 3 and said.err.count("\n") == 1
    assert "magic04.data" in said.err and str(tmp_path / "gca" / "magic") in said.err

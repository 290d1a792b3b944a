"""A coordinator keeps the deadline it has computed; that must not be seen from outside."""

from hypothesis import given, settings
from hypothesis import strategies as st
from server.driver import Driver, plan

RATES = st.sampled_from([0.0, 800.0, 8000.0, 64_000.0])
DEVICES = 6
EVENT = st.tuples(
    st.sampled_from([f"d{n}" for n in range(DEVICES)]),
    st.sampled_from(["upload", "upload", "upload", "leave", "lost", "return"]),
    st.floats(0.0, 40.0),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(RATES, min_size=DEVICES, max_size=DEVICES), st.lists(EVENT, max_size=25))
def test_a_kept_deadline_is_never_late_and_never_passes_unrevised(
    rates: list[float], events: list[tuple[str, str, float]]
) -> None:
    """Against computing it anew at every moment: a kept one is at most as late, and once it has come it is exact."""
    driver = Driver(plan(devices=DEVICES, rounds=3, patience_s=5.0, grace=1.5))
    coordinator, now = driver.coordinator, 1.0
    for number, rate in enumerate(rates):
        driver.arrive(f"d{number}", now, up_rate=rate)
    for device, event, wait in events:
        now += wait
        if coordinator.outcome is not None or coordinator.collection is None:
            return
        round = coordinator.collection.round
        match event:
            case "upload":
                driver.upload(device, round, now)
            case "leave":
                driver.presence(device, now, "left")
            case "lost":
                driver.presence(device, now, "lost")
            case "return":
                driver.arrive(device, now)
        if coordinator.collection.uploads == {} and coordinator.collection.accepted and coordinator.outcome is None:
            driver.aggregated(now)
        if coordinator.outcome is not None or coordinator.due(now) is None:
            continue
        limit, collection = coordinator._limit, coordinator.collection
        kept = limit.kept(collection, now)
        anew = limit.anew(collection)
        assert (kept is None) == (anew is None)
        if kept is not None and anew is not None:
            assert kept <= anew
            assert limit.kept(collection, max(now, kept)) == anew


def test_a_thousand_uploads_do_not_each_look_at_a_thousand_devices(monkeypatch) -> None:
    from broker_server.rounds import round_limit as module

    driver = Driver(plan(devices=300, rounds=3))
    for number in range(300):
        driver.arrive(f"d{number:03d}", 1.0)
    computed = 0
    real = module.slowest_participant

    def counted(*arguments):
        nonlocal computed
        computed += 1
        return real(*arguments)

    monkeypatch.setattr(module, "slowest_participant", counted)
    for round in (1, 2):
        for number in range(300):
            driver.upload(f"d{number:03d}", round, round * 10.0 + number / 100)
        driver.aggregated(round * 10.0 + 5)
    assert computed < 30


def test_goodbyes_do_not_each_look_at_all_who_remain(monkeypatch) -> None:
    from broker_server.rounds import round_limit as module

    driver = Driver(plan(devices=300, rounds=1))
    for number in range(300):
        driver.arrive(f"d{number:03d}", 1.0)
    driver.play(1, 5.0, *(f"d{number:03d}" for number in range(300)))
    computed = 0
    real = module.slowest_to_leave

    def counted(*arguments):
        nonlocal computed
        computed += 1
        return real(*arguments)

    monkeypatch.setattr(module, "slowest_to_leave", counted)
    for number in range(300):
        assert not driver.coordinator.all_gone
        driver.coordinator.farewell_due(6.0)
        driver.presence(f"d{number:03d}", 6.0, "left")
    assert driver.coordinator.all_gone
    assert 1 <= computed < 30

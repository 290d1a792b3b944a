"""Two servers of one run name, by the rule: what each makes of what the other says, worked out without a broker."""

from dataclasses import replace

import pytest
from msgspec import structs
from server.driver import NAME, RUN, Driver, Finish, RoundState, only, plan, state, told

from broker_server.rounds.actions import Closed, Publish, Superseded
from broker_server.rounds.echoes import KEPT, Echoes
from edge_client.protocol import topics
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import SERVER, Join, Probe, Tally

OTHER = f"{RUN}.00000001"
"""A smaller incarnation than the driver's."""
SIGNS = topics.sign_of_life(RUN)


def hear(run: Driver, message: RoundState | Probe, now: float = 5.0) -> list:
    """Hear another server's message, after our own state has come back."""
    (own, *_) = [action for action in run.announce(now) if isinstance(action, Publish)]
    run.send(own.topic, own.payload, now)
    return hear_again(run, message, now)


def hear_again(run: Driver, message: RoundState | Probe, now: float) -> list:
    where = topics.round_state(RUN) if isinstance(message, RoundState) else topics.down(RUN, SERVER, "probe")
    return run.send(where, message, now)


@pytest.mark.parametrize(
    ("other", "yields"),
    [
        (state(OTHER, 2), True),  # it is further
        (state(OTHER, 0, "waiting"), False),
        (state(OTHER, 1), True),  # as far, and of the smaller incarnation
        (state(f"{RUN}.ffffffff", 1), False),
        (state(OTHER, 9, "ended"), False),  # it is over
        (state(f"{NAME}.1", 0, "waiting"), True),  # a later life of our own run
        (state(NAME, 0, "waiting"), True),  # the same, and we never said so: a copy of our study
        (state(NAME, 1, "ended"), True),
        (state(f"{NAME}.1", 9, "ended"), True),  # a later life has gone on to the end, while we stood still
        (state("else.00000001", 9), False),
        (state(RUN, 9), False),
    ],
    ids=lambda value: f"{value.run} {value.state} {value.round}" if isinstance(value, RoundState) else "",
)
def test_who_gives_way(other: RoundState, yields: bool) -> None:
    run = Driver()
    run.start("a", "b")
    answer = hear(run, other)
    assert [isinstance(action, Superseded) for action in answer].count(True) == yields
    assert (run.coordinator.outcome is not None) == yields


def test_what_waited_for_us_in_the_name_of_a_dead_server_is_no_reason_to_give_way() -> None:
    """The broker keeps messages for a client id: those that the dead one had not acknowledged come to the next one."""
    run = Driver()
    run.announce(0.0)
    assert run.send(topics.round_state(RUN), state(OTHER, 7), 1.0) == []
    assert run.coordinator.outcome is None and not run.coordinator.counts


def test_of_any_two_exactly_one_gives_way() -> None:
    names = (NAME, OTHER, f"{NAME}.1")
    for ours in names:
        for theirs in (name for name in names if name != ours):
            for rounds in ((0, 0), (1, 0), (0, 1)):
                ends = []
                for mine, other, (here, there) in ((ours, theirs, rounds), (theirs, ours, rounds[::-1])):
                    _, incarnation, *life = mine.split(".")
                    run = Driver(plan(incarnation=incarnation, life=int(life[0]) if life else 0, devices=1,
                                      minimum_devices=1))  # fmt: skip
                    if here:
                        run.send(topics.join(RUN, "a"), encode_join(run), 1.0)
                    hear(run, state(other, there, "open" if there else "waiting"))
                    ends.append(run.coordinator.outcome is not None)
                assert sorted(ends) == [False, True], (ours, theirs, rounds)


def encode_join(run: Driver) -> bytes:
    return encode(Join(**run.head("a", run=RUN), instance="00000000", samples=10, input_dim=5))


def test_who_gives_way_leaves_the_others_topics_alone_and_tells_its_own_devices() -> None:
    run = Driver()
    run.start("a", "b")
    answer = hear(run, state(OTHER, 7))
    (end,) = [action for action in answer if isinstance(action, Publish)]
    assert told([end], RoundState)[0].state == "ended" and not end.retain
    (why,) = [action.why for action in answer if isinstance(action, Superseded)]
    assert why == (
        "run 'hand': another server coordinates it on this broker and is in round 7; give this one another --run, or "
        "stop the other one first"
    )
    assert [type(action) for action in run.coordinator.closing()] == [Closed]
    assert next(action for action in answer if isinstance(action, Finish)).outcome.reason == why


def test_who_is_asked_gives_a_sign_of_life_and_takes_its_own_words_for_nobody_elses() -> None:
    run = Driver()
    run.start("a", "b")
    probe = Probe(run=OTHER, device=SERVER, seq=0, instance="00000001")
    assert [(s.run, s.state) for s in told(hear(run, probe), RoundState)] == [(NAME, "open")]
    own = Probe(run=NAME, device=SERVER, seq=0, instance=run.plan.instance)
    assert hear(run, own) == []
    assert told(hear(run, structs.replace(own, instance="22222222"), 7.0), RoundState)  # a copy of our study's
    for said in [action for action in run.log if isinstance(action, Publish) and action.topic.endswith("/round")]:
        assert run.send(said.topic, said.payload, 6.0) == []
    assert not run.coordinator.counts


def test_a_server_of_our_very_name_has_us_leave_without_a_word_to_the_devices() -> None:
    run = Driver()
    run.start("a", "b")
    answer = hear(run, state(NAME, 1))
    assert not [action for action in answer if isinstance(action, Publish)]
    superseded = only(answer, Superseded)
    assert superseded.at_once and superseded.why == (
        "run 'hand': another server goes on with it on this broker, from this study or a copy of it; stop one of the "
        "two"
    )
    assert [type(action) for action in run.coordinator.closing()] == [Closed]


def test_our_own_words_are_known_however_late_they_come_and_a_changed_one_is_not_ours() -> None:
    echoes = Echoes()
    states = [RoundState(run=NAME, round=1, device=SERVER, seq=2 * n, state="open") for n in range(KEPT + 10)]
    assert not echoes.holds(states[0], encode(states[0]))  # nothing has been said yet
    for one in states:
        echoes.say(one, encode(one))
    assert all(echoes.holds(one, encode(one)) for one in states)
    last = states[-1]
    for other in (structs.replace(last, round=2), structs.replace(last, seq=last.seq - 1),
                  structs.replace(last, seq=last.seq + 1)):  # fmt: skip
        assert not echoes.holds(other, encode(other))


def test_what_no_server_sent_is_foreign_and_its_bytes_are_counted_as_a_strangers() -> None:
    """Bytes that mean nothing, and what a device says in the server's place."""
    run, sent = Driver(), 0
    run.start("a", "b")
    probe = Probe(run=OTHER, device="b", seq=0, instance="00000001")
    lie = RoundState(run=OTHER, round=9, device="b", seq=3, state="open")
    for topic, message in ((topics.round_state(RUN), lie), (topics.down(RUN, SERVER, "probe"), probe)):
        for payload in (b"\xc1", encode(message)):
            assert run.send(topic, payload, 1.0) == []
            sent += len(payload)
    assert run.coordinator.counts == {"foreign": 4} and run.coordinator.outcome is None
    assert run.coordinator.ledger.drain()[SERVER] == (
        Tally(direction="up", kind="ignored", messages=4, payload_bytes=0, message_bytes=sent),
    )


@pytest.mark.parametrize(
    "message",
    [Probe(run=OTHER, device=SERVER, seq=0, instance="00000001"), state(OTHER, 0, "waiting")],
    ids=["questions", "announcements"],
)
def test_whoever_asks_without_end_has_one_answer_a_second(message: RoundState | Probe) -> None:
    """None is forgotten: who asked last may not have heard the answer before. Devices hear none of them."""
    run = Driver(plan(rubbish_limit=10, message_limit=20))
    run.start("a", "b")
    hear(run, message, 4.0)
    answers = [answer for n in range(2000) for answer in hear_again(run, message, 4.0 + n / 1000)]
    assert len(told(answers, RoundState)) == 1  # at 5.0
    assert run.coordinator.due(5.999) == 6.0 and told(run.tick(5.999), RoundState) == []
    assert [s.run for s in told(run.tick(6.0), RoundState)] == [NAME]
    assert told(run.tick(9.0), RoundState) == []
    assert len(told(hear_again(run, message, 9.5), RoundState)) == 1
    assert not [sign for sign in answers if isinstance(sign, Publish) and (sign.topic != SIGNS or sign.retain)]
    heard, said = sorted(run.coordinator.ledger.drain()[SERVER], key=lambda tally: tally.direction, reverse=True)
    assert (heard.kind, heard.messages, heard.message_bytes) == ("ignored", 2002, 2002 * len(encode(message)))
    assert (said.kind, said.direction, said.messages) == ("ignored", "down", 4)
    assert run.coordinator.collection is not None and run.coordinator.collection.is_open


def ended() -> Driver:
    run = Driver(plan(rounds=1))
    run.start("a", "b")
    run.play(1, 2.0, "a", "b")
    assert run.coordinator.outcome is not None and run.coordinator.outcome.completed
    return run


def test_one_that_has_ended_is_there_for_as_long_as_it_waits_for_devices() -> None:
    run, probe = ended(), Probe(run=OTHER, device=SERVER, seq=0, instance="00000001")
    run.presence("a", 3.0, state="left")
    (answer,) = hear(run, probe)
    assert isinstance(answer, Publish) and (answer.topic, answer.retain) == (SIGNS, False)
    assert [(s.run, s.state) for s in told([answer], RoundState)] == [(NAME, "ended")]
    assert hear_again(run, probe, 5.5) == []
    run.presence("b", 5.9, state="left")
    assert run.tick(6.0) == [] and hear_again(run, probe, 9.0) == []


def test_one_that_has_ended_leaves_the_topics_to_a_server_that_has_begun_meanwhile() -> None:
    run = ended()
    assert len([action for action in run.coordinator.closing() if isinstance(action, Publish)]) == 2
    assert hear(run, state(OTHER, 0, "waiting")) == []
    assert [type(action) for action in run.coordinator.closing()] == [Closed]
    (again,) = [action for action in run.announce(6.0) if isinstance(action, Publish)]
    assert not again.retain


def test_a_closed_server_gives_no_sign_any_more() -> None:
    run, probe = ended(), Probe(run=OTHER, device=SERVER, seq=0, instance="00000001")
    run.coordinator.closing()
    assert hear(run, probe) == [] and run.tick(99.0) == []


def test_the_end_leaves_the_topics_to_nobody_that_is_of_the_past() -> None:
    run = ended()
    run.coordinator.plan = replace(run.plan, life=2)
    assert hear(run, state(f"{NAME}.1", 1)) == []
    assert len([action for action in run.coordinator.closing() if isinstance(action, Publish)]) == 2


def test_what_the_broker_has_kept_is_no_sign_of_life_until_it_has_kept_something_else() -> None:
    """It may have lost its latest memory, and an old one have the state of a server that has been dead for weeks."""
    run = Driver()
    run.start("a", "b")
    own = next(action for action in run.log if isinstance(action, Publish) and action.topic.endswith("/round"))
    run.send(own.topic, own.payload, 2.0)
    dead, place = encode(state(OTHER, 9)), topics.round_state(RUN)
    for now in (3.0, 4.0, 5.0):
        run.coordinator.announce(now)
        assert run.coordinator.take(place, dead, now, retained=True) == []
        assert run.coordinator.take(place, own.payload, now, retained=True) == []
    alive = encode(structs.replace(state(OTHER, 9), seq=77))
    assert only(run.coordinator.take(place, alive, 6.0, retained=True), Superseded)

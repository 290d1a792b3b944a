"""The trees against a matcher that compares level by level, as section 4.7 describes it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_server.broker.packets import MalformedPacket
from broker_server.broker.topics import MAX_LEVELS, RetainedTree, SubscriptionTree, check_filter, check_topic, covers

LEVEL = st.sampled_from(["a", "b", "", "$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = (
    st.tuples(st.lists(st.one_of(LEVEL, st.just("+")), max_size=4), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)


def matches(filter_: str, topic: str) -> bool:
    if topic.startswith("$") and filter_[0] in "+#":
        return False

    def rest(wanted: list[str], levels: list[str]) -> bool:
        if not wanted:
            return not levels
        if wanted[0] == "#":
            return True
        return bool(levels) and wanted[0] in ("+", levels[0]) and rest(wanted[1:], levels[1:])

    return rest(filter_.split("/"), topic.split("/"))


@settings(max_examples=300)
@given(st.lists(st.tuples(FILTER, st.sampled_from("pqr"), st.integers(0, 1), st.booleans()), max_size=20), TOPIC)
def test_subscriptions_match_like_the_naive_matcher(changes: list[tuple[str, str, int, bool]], topic: str) -> None:
    tree = SubscriptionTree()
    held: dict[tuple[str, str], int] = {}
    for filter_, client, qos, add in changes:
        if add:
            tree.add(filter_, client, qos)
            held[filter_, client] = qos
        else:
            tree.remove(filter_, client)
            held.pop((filter_, client), None)
    expected: dict[str, int] = {}
    for (filter_, client), qos in held.items():
        if matches(filter_, topic):
            expected[client] = max(qos, expected.get(client, 0))
    assert tree.match(topic) == expected


@settings(max_examples=300)
@given(st.lists(st.tuples(TOPIC, st.booleans()), max_size=20), FILTER)
def test_retained_match_like_the_naive_matcher(changes: list[tuple[str, bool]], filter_: str) -> None:
    tree: RetainedTree[str] = RetainedTree()
    held: set[str] = set()
    for topic, put in changes:
        if put:
            assert (tree.put(topic, topic) is not None) == (topic in held)
            held.add(topic)
        else:
            assert (tree.remove(topic) is not None) == (topic in held)
            held.discard(topic)
    assert sorted(tree.match(filter_)) == sorted(topic for topic in held if matches(filter_, topic))


@settings(max_examples=300)
@given(FILTER, FILTER, st.lists(TOPIC, max_size=10))
def test_a_covering_pattern_matches_all_that_the_filter_matches(pattern: str, filter_: str, topics: list[str]) -> None:
    if covers(pattern, filter_):
        assert all(matches(pattern, topic) for topic in topics if matches(filter_, topic))


@given(FILTER, TOPIC)
def test_covering_a_plain_topic_is_matching_it(pattern: str, topic: str) -> None:
    assert covers(pattern, topic) == matches(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "filter_", "covered"),
    [
        ("a/#", "a/#", True),
        ("a/#", "a/+/b", True),
        ("a/#", "a", True),
        ("a/+", "a/#", False),
        ("a/+", "a/+", True),
        ("a/b", "a/+", False),
        ("+/b", "#", False),
        ("#", "$SYS/#", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_cover_by_hand(pattern: str, filter_: str, covered: bool) -> None:
    assert covers(pattern, filter_) is covered


def test_empty_branches_are_cut_off() -> None:
    tree = SubscriptionTree()
    for filter_ in ("a/b/c", "a/b", "a/+/#"):
        tree.add(filter_, "c", 1)
    for filter_ in ("a/b", "a/+/#", "a/b/c", "a/b/c"):
        tree.remove(filter_, "c")
    assert tree._root.children == {}


def test_deep_topics_are_refused_before_they_grow_a_tree() -> None:
    check_topic("/" * (MAX_LEVELS - 1))
    check_filter("/" * (MAX_LEVELS - 1))
    for check in (check_topic, check_filter):
        with pytest.raises(MalformedPacket):
            check("/" * MAX_LEVELS)

"""Topic names and filters (MQTT 3.1.1 section 4.7), and the trees that answer "who gets this?" and "what is retained
below?".

Both trees hold one node per topic level and are walked with a stack of their own, so neither the number of
subscribers nor the depth of a hostile topic costs more than the levels that really match.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker_server.broker.packets import MalformedPacket

MAX_LEVELS = 200  # each level costs a tree node of some hundred bytes for one byte sent
T = TypeVar("T")


def check_topic(topic: str) -> None:
    """Raise MalformedPacket unless `topic` may stand in a PUBLISH: not empty, no wildcard, not too deep (4.7)."""
    if not topic:
        raise MalformedPacket("empty topic name (section 4.7.3)")
    if "+" in topic or "#" in topic:
        raise MalformedPacket("wildcard in a topic name (section 3.3.2.1)")
    if topic.count("/") >= MAX_LEVELS:
        raise MalformedPacket(f"topic with more than {MAX_LEVELS} levels")


def check_filter(filter_: str) -> None:
    """Raise MalformedPacket unless wildcards fill whole levels and `#` only the last one (4.7.1)."""
    if not filter_:
        raise MalformedPacket("empty topic filter (section 4.7.3)")
    levels = filter_.split("/")
    if len(levels) > MAX_LEVELS:
        raise MalformedPacket(f"topic filter with more than {MAX_LEVELS} levels")
    for index, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise MalformedPacket("wildcard beside other characters in a topic filter (section 4.7.1)")
        if level == "#" and index < len(levels) - 1:
            raise MalformedPacket("# before the end of a topic filter (section 4.7.1.2)")


def covers(pattern: str, filter_: str) -> bool:
    """True if every topic that `filter_` (a filter or a plain topic) matches is matched by `pattern` too.

    A leading wildcard of the pattern covers nothing that starts with `$` (section 4.7.2).
    """
    wanted, allowed = filter_.split("/"), pattern.split("/")
    if filter_.startswith("$") and allowed[0] in ("+", "#"):
        return False
    for index, level in enumerate(allowed):
        if level == "#":
            return True
        if index == len(wanted):
            return False
        if wanted[index] == "#" or level not in ("+", wanted[index]):
            return False
    return len(wanted) == len(allowed)


@dataclass(slots=True)
class _Node(Generic[T]):
    children: "dict[str, _Node[T]]" = field(default_factory=dict)
    value: T | None = None


class _Tree(Generic[T]):
    """Values under slash-separated keys; branches without values are cut off at once."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def node(self, key: str) -> _Node[T]:
        """Return the node of `key`, growing the branch when needed."""
        node = self._root
        for level in key.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        return node

    def find(self, key: str) -> _Node[T] | None:
        node: _Node[T] | None = self._root
        for level in key.split("/"):
            if node is None:
                return None
            node = node.children.get(level)
        return node

    def prune(self, key: str) -> None:
        """Cut the branch of `key` back to the last node that holds something."""
        path = [self._root]
        levels = key.split("/")
        for level in levels:
            path.append(path[-1].children[level])
        for parent, level, node in reversed(list(zip(path, levels, path[1:], strict=False))):
            if node.children or node.value is not None:
                return
            del parent.children[level]


class SubscriptionTree(_Tree[dict[str, int]]):
    """Which clients want a topic, and with which QoS."""

    def add(self, filter_: str, client_id: str, qos: int) -> None:
        """Add or replace a subscription (section 3.8.4)."""
        node = self.node(filter_)
        if node.value is None:
            node.value = {}
        node.value[client_id] = qos

    def remove(self, filter_: str, client_id: str) -> None:
        """Remove a subscription; one that is not there is no error (section 3.10.4)."""
        node = self.find(filter_)
        if node is None or node.value is None or client_id not in node.value:
            return
        del node.value[client_id]
        if not node.value:
            node.value = None
            self.prune(filter_)

    def match(self, topic: str) -> dict[str, int]:
        """Return client id -> highest QoS over all its matching filters, each client once (section 3.3.5)."""
        found: dict[str, int] = {}
        levels = topic.split("/")
        hidden = topic.startswith("$")  # not matched by a leading wildcard, section 4.7.2
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            children = node.children
            wild = not (hidden and depth == 0)
            if wild and (rest := children.get("#")) is not None:  # matches the parent level as well, section 4.7.1.2
                _merge(found, rest.value)
            if depth == len(levels):
                _merge(found, node.value)
                continue
            if wild and (any_level := children.get("+")) is not None:
                stack.append((any_level, depth + 1))
            if (same := children.get(levels[depth])) is not None:
                stack.append((same, depth + 1))
        return found


class RetainedTree(_Tree[T]):
    """The last value of every topic that has one."""

    def put(self, topic: str, value: T) -> T | None:
        """Store `value` and return what it replaces."""
        node = self.node(topic)
        old, node.value = node.value, value
        return old

    def remove(self, topic: str) -> T | None:
        """Forget the value of `topic` and return it."""
        node = self.find(topic)
        if node is None or node.value is None:
            return None
        old, node.value = node.value, None
        self.prune(topic)
        return old

    def match(self, filter_: str) -> Iterator[T]:
        """Yield the values of all topics that match, parents before children, otherwise in order of arrival."""
        levels = filter_.split("/")
        stack = [(self._root, 0, False)]
        while stack:
            node, depth, everything = stack.pop()
            everything = everything or (depth < len(levels) and levels[depth] == "#")
            if (everything or depth == len(levels)) and node.value is not None:
                yield node.value
            if everything or (depth < len(levels) and levels[depth] == "+"):
                below = [child for name, child in node.children.items() if depth or not name.startswith("$")]
                stack += [(child, depth + 1, everything) for child in reversed(below)]
            elif depth < len(levels) and (same := node.children.get(levels[depth])) is not None:
                stack.append((same, depth + 1, False))


def _merge(found: dict[str, int], subscribers: dict[str, int] | None) -> None:
    if subscribers:
        for client_id, qos in subscribers.items():
            if qos > found.get(client_id, -1):
                found[client_id] = qos

"""Retained messages: the last one of each topic, under one bound for all (MQTT 3.1.1 section 3.3.1.3)."""

from collections.abc import Iterator

from broker_server.broker.packets import Publish
from broker_server.broker.session import held_bytes
from broker_server.broker.topics import RetainedTree


class RetainedStore:
    """Args: `limit`, bytes of all topics and payloads together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tree: RetainedTree[Publish] = RetainedTree()
        self.count = 0
        self.bytes = 0

    def put(self, message: Publish) -> bool:
        """Replace what the topic held; an empty payload clears it. False: no room, and the topic now holds nothing.

        Keeping the older message instead would show subscribers a state that its owner has already taken back.
        """
        old = self._tree.remove(message.topic)
        if old is not None:
            self.count -= 1
            self.bytes -= held_bytes(old)
        if not message.payload:
            return True
        if self.bytes + held_bytes(message) > self._limit:
            return False
        self._tree.put(message.topic, message)
        self.count += 1
        self.bytes += held_bytes(message)
        return True

    def match(self, filter_: str) -> Iterator[Publish]:
        """Yield what is retained below a topic filter."""
        return self._tree.match(filter_)

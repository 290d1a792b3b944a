"""Fixtures that several areas share."""

from brokers import broker, broker_kind

__all__ = ["broker", "broker_kind"]

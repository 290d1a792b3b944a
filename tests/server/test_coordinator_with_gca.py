"""A round with the real aggregation in it: codes go in as devices send them, centroids come out as devices get them."""

import numpy as np
import pytest
from server.driver import METHOD, Aggregate, Chunk, Driver, only, plan, told

from edge_client.protocol.codec import decode_arrays


def test_two_devices_codes_become_two_centroids_with_their_support() -> None:
    """Around (0, 0): a's two codes and one of b, whose mean is (1, 1). Around (100, 100): two of b, mean (101, 99)."""
    run = Driver(plan(rounds=1))
    run.start("a", "b")
    run.upload("a", 1, 2.0, {"latents": np.array([[0, 0], [1, 2]], np.float32)})
    b = np.array([[2, 1], [100, 98], [102, 100]], np.float32)
    wanted = only(run.upload("b", 1, 3.0, {"latents": b}), Aggregate)
    published = run.aggregated(4.0, METHOD.aggregate(wanted.round, wanted.uploads))
    got = decode_arrays(b"".join(chunk.data for chunk in told(published, Chunk)))
    order = np.argsort(got["centroids"][:, 0])
    assert got["centroids"][order] == pytest.approx(np.array([[1, 1], [101, 99]]), abs=1e-5)
    assert got["support"][order].tolist() == [3, 2]


def test_the_order_of_arrival_changes_no_byte_of_the_broadcast() -> None:
    rng = np.random.default_rng(3)
    uploads = {device: {"latents": rng.normal(size=(3, 2)).astype(np.float32)} for device in "ab"}
    bodies = []
    for order in ("ab", "ba"):
        run = Driver(plan(rounds=1))
        run.start(*order)
        for device in order:
            answer = run.upload(device, 1, 2.0, uploads[device])
        wanted = only(answer, Aggregate)
        published = run.aggregated(4.0, METHOD.aggregate(wanted.round, wanted.uploads))
        bodies.append([chunk.data for chunk in told(published, Chunk)])
    assert bodies[0] == bodies[1]


def test_too_few_distinct_codes_reduce_k_and_say_so() -> None:
    run = Driver(plan(rounds=1))
    run.start("a", "b")
    same = {"latents": np.ones((2, 2), np.float32)}
    run.upload("a", 1, 2.0, same)
    wanted = only(run.upload("b", 1, 2.0, same), Aggregate)
    result = METHOD.aggregate(wanted.round, wanted.uploads)
    got = decode_arrays(b"".join(chunk.data for chunk in told(run.aggregated(3.0, result), Chunk)))
    assert got["centroids"].tolist() == [[1.0, 1.0]] and got["support"].tolist() == [4]
    assert any("K reduced from 2 to 1" in remark for remark in result.remarks)

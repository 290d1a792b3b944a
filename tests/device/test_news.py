"""Waiting for a fact to change."""

import asyncio

import pytest

from edge_client.conversation.news import News


async def test_all_who_wait_are_woken_in_their_order_and_who_comes_later_waits() -> None:
    news, woken = News(), []

    async def wait(name: str) -> None:
        await news.wait()
        woken.append(name)

    waiting = [asyncio.create_task(wait(name)) for name in "cab"]
    await asyncio.sleep(0)
    news.tell()
    news.tell()  # twice before they run is as good as once
    late = asyncio.create_task(wait("late"))
    await asyncio.gather(*waiting)
    assert woken == ["c", "a", "b"]
    await asyncio.sleep(0)
    assert not late.done()
    news.tell()
    await late
    assert woken[-1] == "late"


async def test_who_gives_up_is_forgotten() -> None:
    news = News()
    waiting = asyncio.create_task(news.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    news.tell()
    assert not news._waiting

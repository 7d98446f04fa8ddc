"""A stream that pieces go over both ways at once."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def both_ways(sending: Coroutine[Any, Any, None], receiving: Coroutine[Any, Any, None]) -> None:
    """Both at once, until the other side closes its stream; a stream that takes nothing any more ends it too."""
    tasks = {asyncio.create_task(sending), asyncio.create_task(receiving)}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(task for task in tasks if task.done()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del task  # what has failed holds this frame by its traceback, and must not be held by it
        tasks.clear()

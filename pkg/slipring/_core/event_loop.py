"""The event loop in which a worker reads samples of an async dataset."""

import asyncio
import inspect
import threading

from slipring._core.process import Owner
from slipring._core.read_counts import count_in, counts


class EventLoop:
    """An event loop in its own thread: the worker can abandon a wait, even if its thread runs another loop."""

    def __init__(self):
        self.loop, self.owner = asyncio.new_event_loop(), Owner()
        self.ended = threading.Event()
        args = self.loop, self.ended, counts()
        thread = threading.Thread(target=_run, args=args, name="slipring-loop", daemon=True)
        thread.start()
        self.threads = [thread]

    def submit(self, sample, make):
        """Return the future of the awaitable that ``make()`` returns."""
        return asyncio.run_coroutine_threadsafe(_turns(sample, make), self.loop)

    def forget(self, awaitables):
        """Close the awaitables that will never start, so that Python does not warn that they were never awaited."""
        self.loop.call_soon_threadsafe(_close_unstarted, awaitables)

    def end(self):
        """Stop the loop: its thread cancels all tasks and closes it."""
        if self.owner.is_here and not self.ended.is_set():
            self.ended.set()
            self.loop.call_soon_threadsafe(self.loop.stop)


def _run(loop, ended, reads):
    """Run the loop in its thread until it is ended, then clean up as `asyncio.Runner` does."""
    count_in(reads)
    asyncio.set_event_loop(loop)
    try:
        while not ended.is_set():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # asyncio also raises it in the code that awaits: the worker raises that one
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _turns(sample, make):
    """Await a sample's coroutine; each of its steps runs in the sample's context."""
    return await _Turns(sample, make)


class _Turns:
    """An awaitable whose every step runs in the sample's context; ``make()`` returns the inner awaitable.

    Between two steps the same thread reads other samples, so the values in `threading.local` are swapped at each step.
    """

    def __init__(self, sample, make):
        self.sample, self.make = sample, make

    def __await__(self):
        with self.sample:
            turns = self.make().__await__()
        step, value = turns.send, None
        while True:
            with self.sample:
                try:
                    waits_for = step(value)
                except StopIteration as end:
                    return end.value
            try:
                value = yield waits_for
                step = turns.send
            except BaseException as error:
                value, step = error, turns.throw


def _close_unstarted(awaitables):
    for one in awaitables:
        if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
            one.close()

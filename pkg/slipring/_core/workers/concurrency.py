"""Read the samples of a batch concurrently: in threads of the worker, or as coroutines in its event loop.

This is for datasets that wait for a disk, a network or a service. Each worker has its own threads and its own loop.
They start with the first batch that needs them and end with the worker. They are daemon threads: a read that never
returns prevents neither the worker nor the program from ending.
"""

import collections
import contextlib
import inspect
import itertools
import queue
import signal
import threading
import time
import weakref
from concurrent.futures import Future
from functools import partial

from slipring._core.codec._rows import LIST, RowWriter
from slipring._core.ring import sample_marks
from slipring._core.ring._segment import now
from slipring._core.ring._slot import Reading, end_reading, wait_for_row
from slipring._core.ring.process import Owner
from slipring._core.ring.sample_marks import count_in, counts, failed_at
from slipring._core.ring.signals import no_interrupt
from slipring._core.ring.worker_info import swap_thread_info
from slipring._core.workers import seeding
from slipring.errors import RemoteError

END_S = 1.0  # wait for threads at the worker's end; a thread that is still reading is abandoned


def is_awaitable(thing):
    """Return whether an object can be awaited, such as the result of an ``async def``."""
    return hasattr(type(thing), "__await__")


def is_async(dataset):
    """Return whether the ``__getitem__`` of a dataset is an ``async def``."""
    return inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None))


def is_subset(dataset):
    """Return whether a dataset is torch's Subset itself, as ``random_split`` makes it."""
    return _is_of_torch(dataset, "Subset")


def is_concatenation(dataset):
    """Return whether a dataset is torch's ConcatDataset itself."""
    return _is_of_torch(dataset, "ConcatDataset")


def _is_of_torch(dataset, name):
    kind = type(dataset)
    return (kind.__module__, kind.__name__) == ("torch.utils.data.dataset", name)


def reads_in_one_call(dataset):
    """Return whether ``__getitems__`` does more than ask another dataset sample by sample, as torch's Subset does."""
    if is_subset(dataset):
        inner = dataset.dataset
        return callable(getattr(inner, "__getitems__", None)) and reads_in_one_call(inner)
    return True


class Concurrency:
    """The concurrent reads of one worker.

    `most` is the number of threads, and the largest number of coroutines that run at once. None means no thread, and
    all coroutines of a batch at once.
    """

    def __init__(self, most):
        self.most = most
        self.readers, self.ends = {}, {}  # by kind: the object with the threads or the loop, and its finalizer
        self.owner = Owner()

    @property
    def has_threads(self):
        """bool: whether threads read the samples."""
        return self.most is not None and self.most > 1

    def _part(self, kind):
        """Return the threads or the loop, and start them at first use. A forked child does not use its parent's."""
        if not self.owner.is_here:
            self.readers, self.ends, self.owner = {}, {}, Owner()
        if kind not in self.readers:
            # A handler that raised here would leave threads and descriptors behind.
            with no_interrupt() as mask:
                # Threads inherit the mask, and so do processes that a dataset starts.
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                part = self.readers[kind] = EventLoop() if kind == "loop" else FetchThreads(self.most)
                end = self.ends[kind] = weakref.finalize(self, part.end)
                end.atexit = False  # they are daemons
        return self.readers[kind]

    def by_threads(self, read, asked, rows):
        """Write ``[read(one) for one in asked]`` to `rows`; the threads read the samples, see `_put_all`.

        If `read` returns awaitables, return a list of them. No row then has one of them.
        """
        threads = self._part("threads")
        samples = _samples(len(asked))

        def submit(row):
            return threads.submit(samples[row], read, asked[row])

        return _put_all(submit, self.most, samples, asked, rows)

    def tried(self, read, asked):
        """Return the results as a list, with None in place of each failed read. The reads draw no random numbers.

        If a result is a `RemoteError` that will be raised, do not wait for the reads after it: their entries are None.
        """
        found = [None] * len(asked)
        with contextlib.closing(self.in_order(read, asked, len(asked))) as results:
            for n, result in enumerate(results):
                found[n] = result
                if isinstance(result, RemoteError) and not result.missing:
                    break
        return found

    def in_order(self, read, asked, most=None):
        """Yield the results in order, with None in place of each failed read.

        `most` reads are in flight; by default, as many as there are threads. None starts before the first result is
        requested.
        """
        threads, asked, futures = self._part("threads"), iter(asked), collections.deque()
        try:
            while True:
                for one in itertools.islice(asked, (most or self.most) - len(futures)):
                    futures.append(threads.submit(_Sample(seeding.NO_CONTEXT, None), read, one))
                if not futures:
                    return
                future = futures.popleft()
                yield None if future.exception() is not None else future.result()
                del future
        finally:
            for future in futures:
                future.cancel()
            futures.clear()

    def by_loop(self, read, asked, rows):
        """Write the results of an async function `read` to `rows`."""
        self._gather([lambda one=one: read(one) for one in asked], asked, rows)

    def awaited(self, awaitables, asked, rows):
        """Await the awaitables in the worker's event loop, and write their results to `rows`."""
        try:
            self._gather([lambda made=made: made for made in awaitables], asked, rows)
        except BaseException:
            self._part("loop").forget(awaitables)
            raise

    def _gather(self, makers, asked, rows):
        loop = self._part("loop")
        samples = _samples(len(makers))

        def submit(row):
            return loop.submit(samples[row], makers[row])

        _put_all(submit, len(makers) if self.most is None else self.most, samples, asked, rows)

    def one(self, awaitable):
        """Return the result of an awaitable that makes a whole batch. It draws the batch's random numbers."""
        sample = _Sample(seeding.swap_context(seeding.NO_CONTEXT), _thread_info())
        future = self._part("loop").submit(sample, lambda: awaitable)
        try:
            return future.result()
        finally:
            future.cancel()
            seeding.swap_context(sample.context)

    def close(self):
        """End the threads and the loop. Do not wait long for a read that is still running."""
        if not self.owner.is_here:
            return
        ends, self.ends, parts, self.readers = list(self.ends.values()), {}, list(self.readers.values()), {}
        for end in ends:
            end()
        deadline = time.monotonic() + END_S
        for part in parts:
            for thread in part.threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - time.monotonic()))


def _put_all(submit, most, samples, asked, rows):
    """Read samples concurrently, and write each to its row when it is read; see `Concurrency.by_threads`.

    If reads fail, the exception of the first sample in order is raised here, with its position. Reads
    that have not started are cancelled.

    ``submit(row)`` starts to read the sample of a row and returns the future. `most` is the largest number of samples
    that are being read or wait for their rows. All wait for the first sample, which determines the layout.
    """
    done, futures, early = queue.SimpleQueue(), {}, []
    begun, end, since = 0, len(asked), now()
    failed = awaitables = None
    try:
        while True:
            while begun < end and len(futures) < most:
                futures[begun] = future = submit(begun)
                future.add_done_callback(partial(_done, done, begun))
                begun += 1
            row = next(iter(futures), end)
            if row >= end:  # all samples before the failed one have been read
                break
            if done.empty():
                wait_for_row(row, asked[row])
            row = done.get()
            if _has_failed(futures[row]):
                if row < end:
                    failed, end = row, row
                continue
            if row and rows.count == 0:
                early.append(row)
                continue
            if row == 0:
                if is_awaitable(futures[0].result()):
                    rows = awaitables = RowWriter(0, end, LIST)
                early.sort()
            for ready in (row, *early):
                rows.put(ready, futures.pop(ready).result())
            early.clear()
        if failed is not None:
            try:
                futures[failed].result()
            except Exception as error:
                failed_at(failed, error)
                raise
        return None if awaitables is None else awaitables.read_back()
    finally:
        for future in futures.values():
            future.cancel()
        futures.clear()  # they refer to exceptions, and those to this frame
        sample_marks.apart.skipped += end_reading(asked, [sample.reading for sample in samples], since)


def _done(done, row, future):
    done.put(row)


def _has_failed(future):
    return future.cancelled() or future.exception() is not None


class _Sample:
    """A context in which the calling thread reads one sample: random numbers, worker info and times."""

    __slots__ = ("context", "info", "reading")

    def __init__(self, context, info):
        self.context, self.info, self.reading = context, info, Reading()

    def __enter__(self):
        self.context = seeding.swap_context(self.context)
        self.info = swap_thread_info(self.info)
        self.reading.__enter__()

    def __exit__(self, *exc):
        self.reading.__exit__(*exc)
        self.info = swap_thread_info(self.info)
        self.context = seeding.swap_context(self.context)


def _samples(n):
    info = _thread_info()
    return [_Sample(context, info) for context in seeding.sample_contexts(n)]


def _thread_info():
    info = swap_thread_info(None)
    swap_thread_info(info)
    return info


class EventLoop:
    """An event loop in its own thread: the worker can abandon a wait, even if its thread runs another loop."""

    def __init__(self):
        import asyncio  # here, because its import takes as long as half of slipring's

        self.loop, self.owner = asyncio.new_event_loop(), Owner()
        self.ended = threading.Event()
        args = self.loop, self.ended, counts()
        thread = threading.Thread(target=_run, args=args, name="slipring-loop", daemon=True)
        thread.start()
        self.threads = [thread]

    def submit(self, sample, make):
        """Return the future of the awaitable that ``make()`` returns."""
        import asyncio

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
    import asyncio

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


class FetchThreads:
    """Threads that read samples. They refer only to the queue, so they can be ended when this object is dropped."""

    def __init__(self, n):
        self.tasks, self.threads, self.owner = queue.SimpleQueue(), [], Owner()
        try:
            for number in range(n):
                name = f"slipring-fetch-{number}"
                thread = threading.Thread(target=_read, args=(self.tasks, counts()), name=name, daemon=True)
                thread.start()
                self.threads.append(thread)
        except RuntimeError as error:
            self.end()
            raise RuntimeError(
                f"fetch_threads={n}, of which only {len(self.threads)} could be started: {error}. Give fewer, or "
                "have fewer workers"
            ) from error

    def submit(self, sample, read, one):
        """Return the future of ``read(one)``."""
        future = Future()
        self.tasks.put((future, sample, read, one))
        return future

    def end(self):
        """End the threads after the reads that were submitted so far."""
        if self.owner.is_here:
            for _ in self.threads:
                self.tasks.put(None)


def _read(tasks, reads):
    """Read samples until the queue returns None. This is the main function of a thread."""
    count_in(reads)
    while (task := tasks.get()) is not None:
        future, sample, read, one = task
        if future.set_running_or_notify_cancel():
            try:
                with sample:
                    made = read(one)
            except BaseException as error:  # the worker raises it
                future.set_exception(error)
                del error
            else:
                future.set_result(made)
                del made
        del task, future, sample, read, one  # drop the references before the next wait

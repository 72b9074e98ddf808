"""Passes whose batches one process makes and others read from its slots: the agreement between these processes.

The *lead* has the workers, and shares each batch with the *readers*. A `Connection` connects each reader with the lead.
Over it, the lead announces each pass and its end, and sends the descriptors of a new segment. A reader answers when it
takes part. Batches and their states travel in slots alone.
"""

import contextlib
import hashlib
import logging
import os
import select
import weakref

from slipring._core.codec._shared import SharedReader, attached_ring
from slipring._core.passes.connection import packed_error, polled, unpacked_error
from slipring._core.ring._segment import now
from slipring._core.ring.process import Owner
from slipring._core.ring.signals import no_interrupt
from slipring._core.ring.text import seconds as duration
from slipring.errors import Closed, LeadDied, LoaderTimeout

WARN_AFTER = 10 * 10**9  # ns
CHECK_S = 0.1  # how often a waiting process looks whether another thread ends its wait

log = logging.getLogger("slipring")


# ---- what must be equal in all processes when a pass begins


def facts_of(options, seed, position):
    """Return {name: text} of a pass that begins: what its processes must agree on."""
    beyond = hashlib.sha256(repr(sorted(position.beyond)).encode()).hexdigest()[:8] if position.beyond else ""
    workers = [worker.batches for worker in position.workers or ()]
    return {
        "num_workers": str(options.num_workers),
        "the seed (generator=)": str(seed),
        "the epoch": str(position.epoch),
        "the position (load_state_dict)": f"{position.delivered} batches{beyond and f', and others ({beyond})'}",
        "the positions of workers (load_state_dict)": str(workers),
    }


def difference(facts):
    """Return the text for facts that differ, from {rank: {name: text}} (rank None: this one); None if none differ."""
    first, *others = facts
    for name, value in facts[first].items():
        for other in others:
            if facts[other].get(name) != value:
                return f"{name}: {value} in {_rank(first)}, {facts[other].get(name)} in {_rank(other)}"
    return None


def _rank(rank):
    return "this rank" if rank is None else f"rank {rank}"


def _check_owner(owner):
    """Raise `Closed` in a forked child: its parent is the rank."""
    if not owner.is_here:
        raise Closed("a loader with share= belongs to the process that made it, and this is a forked child of it")


# ---- the lead


class Lead:
    """The part of the process that has the workers.

    One thread at a time uses it for a pass: the one in next(), or the one that begins or ends the pass. `connections`
    lead to the readers, in the order of their numbers.
    """

    def __init__(self, connections):
        self.connections, self.passes, self.warn_at, self.warned_of = connections, 0, 0, 0
        self.own = None  # what the readers get from the frontend when the next pass begins
        self.owner, self.dead = Owner(), set()
        self.answered = [0] * len(connections)  # the newest pass that each reader takes part in, or is absent from
        self.errors = {}  # pass -> the exception with which a reader refuses it
        # [weak reference to the engine whose segment each reader has], and those whose dead readers are recovered
        self.segments = [lambda: None] * len(connections)
        self.recovered = [weakref.WeakSet() for _ in connections]
        self.deaths = select.epoll()
        for connection in connections:
            self.deaths.register(connection.pidfd, select.EPOLLIN)

    @property
    def n_readers(self):
        """int: for how many readers a segment is made."""
        return len(self.connections)

    @property
    def death_fd(self):
        """int: a descriptor that is readable after a reader's death, until `recover_dead` is called."""
        return self.deaths.fileno()

    def begin(self, engine, options, seed, position):
        """Announce a pass of an engine to the readers; return the pass's number."""
        self.passes += 1
        facts, record = facts_of(options, seed, position), engine.ring.controls
        fds = [engine.ring.fd, *([record] if record != engine.ring.fd else [])]
        for number, connection in enumerate(self.connections):
            known = self.segments[number]() is engine
            if connection.send("begin", self.passes, facts, self.own, fds=() if known else fds):
                self.segments[number] = weakref.ref(engine)
        self.warn_at = now() + WARN_AFTER
        return self.passes

    @contextlib.contextmanager
    def beginning(self, own):
        """Begin a pass in the block: the readers get `own` with it, or learn that it cannot begin."""
        _check_owner(self.owner)
        before, self.own = self.passes, own
        try:
            yield
        except BaseException as error:
            if self.passes == before:
                self.passes += 1
                self.end(self.passes, 0, error, is_fatal=True)
            raise

    def is_complete(self, number, timeout_s):
        """Wait for readers, at most `timeout_s`; return whether all that live take part in a pass.

        Raise the exception with which a reader refuses the pass.
        """
        missing = self._missing(number)
        if missing:
            fds = [fd for connection in missing for fd in (connection.socket.fileno(), connection.pidfd)]
            if not polled(fds, timeout_s):
                self._warn(number, missing)
            for connection in missing:
                self._answers(connection)
            missing = self._missing(number)
        if number in self.errors:
            raise self.errors.pop(number)
        return not missing

    def _missing(self, number):
        return [
            connection
            for at, connection in enumerate(self.connections)
            if self.answered[at] < number and not connection.is_over and not connection.is_dead()
        ]

    def _answers(self, connection):
        for (number, text, data), _ in connection.messages():
            at = self.connections.index(connection)
            self.answered[at] = max(self.answered[at], number)
            if text is not None:
                self.errors[number] = unpacked_error(text, data, connection.name)

    def _warn(self, number, missing):
        if now() >= self.warn_at:
            waited, self.warn_at = now() - self.warn_at + WARN_AFTER, float("inf")
            log.warning(
                "share=: the batches of pass %d wait for %s, which %s not called iter() of the loader for %s",
                *(number, ", ".join(connection.name for connection in missing), "has" if len(missing) == 1 else "have"),
                duration(waited / 1e9),
            )

    def timed_out(self, number, timeout_s):
        """Return the exception for readers that do not take part in time."""
        names = ", ".join(connection.name for connection in self._missing(number))
        return LoaderTimeout(
            f"no batch within timeout={timeout_s} s: the batches wait for {names}. Each rank of share= must call "
            "iter() of the loader as often as the others"
        )

    def slots_kept(self, ring):
        """Return the text that names the readers to which the lack of free slots is due; None: to no reader."""
        kept = ring.kept_by_readers()
        most = max(map(sum, kept))
        names = ", ".join(
            f"{connection.name}, which keeps {batches} batches and has not taken {untaken}"
            for connection, (batches, untaken) in zip(self.connections, kept, strict=True)
            if batches + untaken == most
        )
        return most and (
            f"share=: no slot of {ring.n_slots} is free, so the next batches wait for {names}: it must drop batches or "
            "take them sooner; Memory(slots=...) sets the number of slots"
        )

    def warn_of_slots(self, ring, since):
        """Log once which readers keep the slots for which the loop has waited since a time in ns."""
        if now() - since >= WARN_AFTER and self.warned_of != since and (text := self.slots_kept(ring)):
            self.warned_of = since
            log.warning("%s (it has been so for %s)", text, duration((now() - since) / 1e9))

    def recover_dead(self, engine):
        """Release the slots that dead readers have in an engine's segment."""
        for fd, _ in self.deaths.poll(0):
            number = next(at for at, connection in enumerate(self.connections) if connection.pidfd == fd)
            self.dead.add(number)
            self.deaths.unregister(fd)
            log.warning("share=: %s has died; the other ranks continue", self.connections[number].name)
        for number in self.dead:
            if engine not in self.recovered[number]:
                engine.ring.recover(engine.ring.n_participants + number)
                self.recovered[number].add(engine)

    def end(self, number, results, error=None, is_fatal=False):
        """Tell the readers that a pass has ended after so many results, and why.

        `is_fatal`: the error has ended the pass; otherwise it comes after the last batch.
        """
        if self.owner.is_here and number:
            for connection in self.connections:
                with contextlib.suppress(BlockingIOError):  # it has not read its messages for very long
                    connection.send("end", number, results, *packed_error(error), is_fatal)


# ---- a reader


class SharedSegment:
    """The lead's segment in a reader: what an `Engine` is to the lead."""

    pool = memory = None
    alive = True

    def __init__(self, ring):
        self.ring, self.meter = ring, ring.meter
        self.pinned_slots = None  # as of `Engine`
        self.owner = Owner()

    @property
    def inherited(self):
        """bool: whether this process has inherited the segment by a fork."""
        return not self.owner.is_here

    def close(self, counters):
        """Unregister slots, and keep the figures."""
        if self.pinned_slots is not None:
            self.pinned_slots.close()
        counters.fold(self.meter, self.ring.info)


class Reader:
    """The part of a process that reads the lead's batches. The loader's `EngineCache` gets the figures."""

    def __init__(self, connection, number, engines):
        self.connection, self.number, self.engines, self.passes = connection, number, engines, 0
        self.attached = self.segment = None  # the newest `SharedSegment`, and that of the newest pass
        self.newest = lambda: None  # a weak reference to the newest `ReaderPass`
        self.ends = {}  # pass -> how the lead has ended it: (results, text, pickle, is_fatal)
        self.begun = {}  # pass -> (facts, what the lead's frontend sent, segment) of passes to be begun here

    @contextlib.contextmanager
    def beginning(self, timeout_s):
        """Begin a pass in the block, after the lead has: yield what its frontend has sent.

        Raise `LeadDied`, `LoaderTimeout`, or the exception with which the lead could not begin. The lead learns of the
        exceptions in the block.
        """
        _check_owner(self.connection.owner)
        self._await_begin(timeout_s)
        try:
            yield self.begun[self.passes][1]
        except BaseException as error:
            self.connection.send(self.passes, *packed_error(error))
            raise

    def _await_begin(self, timeout_s):
        """Wait for the lead. After a timeout or Ctrl-C, the next call waits for the same pass."""
        number, began, warn_at = self.passes + 1, now(), now() + WARN_AFTER
        while True:
            self.update()
            if number in self.begun:
                self.passes = number
                return
            if number in self.ends:
                self.passes = number
                raise self.ended_by(number)
            if self.is_lead_gone():
                raise self.lead_died()
            if timeout_s and now() - began >= timeout_s * 1e9:
                raise LoaderTimeout(f"{self.connection.name} has not called iter() of the loader within {timeout_s} s")
            if now() >= warn_at:
                warn_at = float("inf")
                log.warning("share=: iter() waits for iter() of %s", self.connection.name)
            polled([self.connection.socket.fileno(), self.connection.pidfd], CHECK_S)

    def begin(self):
        """Return the `ReaderPass` of the pass that begins."""
        facts, _, segment = self.begun.pop(self.passes)
        if segment is not self.segment:
            if self.segment is not None:
                self.segment.close(self.engines.counters)
            self.engines.counters.meters.append(segment.meter)
            self.segment, self.engines.local = segment, segment.meter
        if (before := self.newest()) is not None and before.segment is segment:
            before.leave()  # the lead has ended that pass
        reading = ReaderPass(self, self.passes, facts, segment)
        self.newest = weakref.ref(reading)
        return reading

    def is_lead_gone(self):
        """Return whether the lead has died, or has dropped its loader."""
        return self.connection.is_over or self.connection.is_dead()

    def update(self):
        """Take the lead's messages."""
        for (kind, number, *more), fds in self.connection.messages():
            if kind == "end":
                self.ends.setdefault(number, more)
            elif number > self.passes and number not in self.begun:  # otherwise a signal handler has interrupted this
                with no_interrupt():
                    self._announced(number, more, fds)
        for number in [number for number in self.ends if number < self.passes - 8]:
            del self.ends[number]

    def _announced(self, number, more, fds):
        if fds:
            try:
                self.attached = SharedSegment(attached_ring(*fds))
            finally:
                for fd in fds:
                    os.close(fd)
        self.begun[number] = *more, self.attached

    def ended_by(self, number):
        """Return the exception for a pass that the lead has ended before this process."""
        results, text, data, _ = self.ends[number]
        if text is not None:
            return unpacked_error(text, data, self.connection.name)
        return Closed(
            f"{self.connection.name}, which makes the batches, ended this pass after {results} results: leave the loop "
            "at the same batch in all ranks of share="
        )

    def lead_died(self):
        """Return the exception for a lead that has died, or has dropped its loader."""
        what = "has died" if self.connection.is_dead() else "has dropped its loader"
        return LeadDied(
            f"{self.connection.name}, which makes the batches of share=, {what}, and none of its batches is left",
            rank=self.connection.rank,
            pid=self.connection.pid,
        )


class ReaderPass:
    """One pass of a reader, from the lead's announcement on. Its `reader` takes part from now on."""

    def __init__(self, owner, number, facts, segment):
        self.owner, self.number, self.facts, self.segment = owner, number, facts, segment
        self.reader = SharedReader(segment.ring, owner.number)
        self.is_left = False

    # What a frontend asks of an engine.
    ring = property(lambda self: self.segment.ring)
    meter = property(lambda self: self.segment.meter)
    inherited = property(lambda self: self.segment.inherited)
    pinned_slots = property(
        lambda self: self.segment.pinned_slots, lambda self, slots: setattr(self.segment, "pinned_slots", slots)
    )

    @property
    def death_fd(self):
        """int: the lead's pidfd."""
        return self.owner.connection.pidfd

    def take_part(self, options, seed, position):
        """Compare this process's beginning of the pass with the lead's, and tell the lead that this process reads."""
        lead = self.owner.connection.rank
        differs = difference({lead: self.facts, None: facts_of(options, seed, position)})
        if differs is not None:
            raise ValueError(f"the ranks of share= begin a pass differently; {differs}")
        self.owner.connection.send(self.number, None, None)

    def refuse_next(self, error):
        """Tell the lead that this process will not take part in the next pass, which then raises the error."""
        self.owner.connection.send(self.number + 1, *packed_error(error))

    def has_ended(self):
        """Return whether the lead has ended the pass, or is gone. All its batches have then been shared."""
        self.owner.update()
        return self.number in self.owner.ends or self.owner.is_lead_gone()

    def end(self):
        """Return (the exception for a pass that the lead has ended too early, whether that has ended it at once)."""
        if self.number not in self.owner.ends:
            return self.owner.lead_died(), True
        return self.owner.ended_by(self.number), self.owner.ends[self.number][3]

    def await_message(self):
        """Wait for a message of the lead, or its death, for a short time."""
        polled([self.owner.connection.socket.fileno(), self.death_fd], CHECK_S)

    def leave(self):
        """Take part no longer. Safe to call twice."""
        if not self.is_left:
            self.is_left = True
            self.reader.leave()

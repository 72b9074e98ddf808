"""Jobs of the run at every step that hit a process that shares a Queue: see step_job.py.

In each round producers and consumers share a new queue. One of them is killed or stopped at the point; a dead one is
replaced, a stopped one continues when the others have done their part. Each process records its actions in shared
memory, which survives a kill.
"""

import contextlib
import os
import signal

import numpy as np

from tests.fault.step_job import HANG_S, HOWS, POINTS, Job, main
from tests.fault.step_parts import (
    EACH,
    END,
    Account,
    Child,
    Gate,
    consume,
    make_one_and_produce,
    produce,
)
from tests.support.processes import until

# isort: split
# At this point step_job has loaded the ring with the points.
from slipring import Queue
from slipring.errors import ShutDown
from tests.support.inside import count_of

VICTIM = 1  # the participant that orders name
SLOTS = 4  # too few for two producers
# Points after which a producer has published, and points where a consumer may have a message that it has not recorded.
PUBLISHED = ("sr_publish: after cas", "sr_wake_ready:")
TAKEN = (
    "sr_take: after cas",
    "sr_take: before store",
    "sr_record_take:",
    "sr_populate:",
    "map_more:",
    "release_slot:",
    "sr_set_free_at:",
    "wake_free:",
)


class QueueJob(Job):
    """Processes share a queue."""

    participant = VICTIM

    def __init__(self, kind, mode, quick, rng):
        super().__init__(kind, mode, quick, rng)
        who, what = mode.split()
        self.who, self.hows = who, (signal.SIGSTOP,) if what == "stops" else HOWS

    def fault_free(self):
        self.round()
        self.round()

    def one(self, orders):
        self.account, self.orders = Account(), orders
        self.doubtful = {}  # (producer, number) of a put() that did not return -> whether it was published
        self.forgiven = 0  # messages that a dead consumer may have taken with it
        {"producer": self.producer, "consumer": self.consumer}[self.who]()

    def died_at(self, child):
        """Return the point where a hit killed a child; None if it has finished."""
        until(lambda: self.go_on(child) or child.ended(), "the victim's end", HANG_S)
        for strike, order in zip(POINTS.strikes(), self.orders, strict=False):
            if strike.done and strike.pid == child.pid and strike.how != signal.SIGSTOP:
                if child.code != (-strike.how or 3):
                    self.wrong(f"after {self.orders} the victim ended with {child.code}")
                return order.name
        if child.code != 0:
            self.wrong(f"after {self.orders} somebody ended with {child.code}")
        return None

    def expect(self, *children):
        """Wait for the end of children that are not hit."""
        for child in children:
            if child.wait() != 0:
                self.wrong(f"after {self.orders} somebody ended with {child.code}")

    def go_on(self, child):
        """Let a stopped child continue."""
        if child.stands_still():
            os.kill(child.pid, signal.SIGCONT)

    def producer(self):
        """Hit one of two producers: while a consumer waits, while no slot is free, or later."""
        q, gate = Queue(SLOTS, max_processes=5), Gate()
        consumers = [Child(0, consume, q, 0, self.account, gate, 1)]
        until(consumers[0].waits, "a consumer waits", HANG_S)
        victim = Child(VICTIM, make_one_and_produce, q, 0, self.account)
        until(lambda: self.account.put[0] or victim.waits(), "the victim begins", HANG_S)
        other = Child(0, produce, q, 1, self.account)
        until(lambda: victim.waits() and other.waits(), "the queue is full", HANG_S)
        gate.open()
        consumers.append(Child(0, consume, q, 1, self.account))
        self.expect(other)
        at, first = self.died_at(victim), int(self.account.put[0])
        if at is not None:
            if self.account.begun[0] > first:
                self.doubtful[0, first] = at.startswith(PUBLISHED)
                self.account.put[0] = first = first + 1
            self.expect(Child(0, produce, q, 0, self.account, first))
        gate.close()
        self.end(q, consumers)

    def consumer(self):
        """Hit one of two consumers: while it waits, while producers wait, or later."""
        q, gate = Queue(SLOTS + 1, max_processes=5), Gate()
        victim = Child(VICTIM, consume, q, 0, self.account, gate, 1)
        until(victim.waits, "the victim waits for a message", HANG_S)
        with q.slot() as s:
            held = s.empty(5)
            held[:] = 7
            s.put([held])
        producers = [Child(0, produce, q, me, self.account) for me in range(2)]
        until(lambda: all(child.waits() for child in producers), "the queue is full", HANG_S)
        gate.open()
        gate_of_other = Gate()
        other = Child(0, consume, q, 1, self.account, gate_of_other, EACH // 2)

        def has_its_share():
            return self.account.got[0].sum() >= EACH

        until(lambda: has_its_share() or victim.ended() or victim.stands_still(), "the victim's part", HANG_S)
        gate_of_other.open()
        self.expect(*producers)
        for _ in range(2):
            q.put(END)
        self.expect(other)
        at, others = self.died_at(victim), []
        if at is not None:
            self.forgiven += bool(self.account.getting[0] and at.startswith(TAKEN))
            others.append(Child(0, consume, q, 2, self.account))
        if not (held == 7).all():
            self.wrong(f"after {self.orders} an array that was kept is {held}")
        del held
        gate.close()
        gate_of_other.close()
        self.end(q, others)

    def end(self, q, consumers):
        """Wait until all producers have finished; check that the queue can still be used, and the counts."""
        for _ in consumers:
            q.put(END)
        self.expect(*consumers)
        self.usable(q)
        q.shutdown()
        with contextlib.suppress(ShutDown):
            self.wrong(f"after {self.orders} {q.get()!r} is got after the end")
        q.close()
        account, got = self.account, self.account.got.sum(axis=0)
        due = np.arange(EACH) < account.put[:, None]
        for (me, number), published in self.doubtful.items():
            due[me, number] = published
        found = {
            "lost": max(0, int((due & (got == 0)).sum()) - self.forgiven),
            "doubled": int((got > 1).sum()),
            "reordered": int(account.reordered.sum()),
            "changed": int(account.changed.sum()),
        }
        self.counts.update(found)
        self.counts["batches"] += int(got.sum())
        if any(found.values()):
            self.details.append(f"after {self.orders}: {found}")
        if (got[~due] > 0).any():
            self.wrong(f"after {self.orders} a message arrives that was not published: {got}, {due}")
        if (account.put != EACH).any():
            self.wrong(f"after {self.orders} {account.put} were put, not {EACH} each")

    def usable(self, q):
        """Check that every slot can be filled."""
        while q.qsize():
            if (got := q.get()) != END:
                self.wrong(f"after {self.orders} {got} is left")
        for number in range(q.maxsize):
            q.put(number)
        full, back = count_of(q)(), [q.get() for _ in range(q.maxsize)]
        if (full, back, count_of(q)()) != ((q.maxsize, 0), list(range(q.maxsize)), (0, q.maxsize)):
            self.wrong(f"after {self.orders} the queue has {full}, {back}, {count_of(q)()}")


if __name__ == "__main__":
    main(QueueJob)

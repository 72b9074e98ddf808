"""Jobs of the run at every step that hit a worker of two segments, as the workers of a pool are: see step_job.py.

In each round a consumer of both segments dispatches to them in turn. A worker that dies is recovered in both and
replaced; one that is stopped continues. The worker gives some tasks up and takes them again, as if it lacked memory
while another loader starves.
"""

import os
import signal

import numpy as np

from tests.fault.step_job import HANG_S, HOWS, POINTS, Job, main
from tests.fault.step_parts import Child
from tests.support.processes import until

# isort: split
# At this point step_job has loaded the ring with the points.
from tests.support.inside import BATCH, Encoder, ServedRings
from tests.support.trip import Trip

SLOTS, BATCHES = 3, 6
WORKER = 1  # the participant that orders name
WAKE_LINES = 3 * 64  # bytes
MOMENT_S = 0.01


def rows_of(which, number):
    return np.full(1_000 + number, 100 * which + number, np.int32)


def serve(rings, fd):
    """Make batches for both segments until both are closed."""
    encoder, served, given_up = Encoder(), ServedRings(WORKER), set()
    for ring in rings:
        ring.in_child()
        ring.use_wake_file(fd)
        ring.join(WORKER)
        ring.serve(WORKER)
        served.add(ring)
    while True:
        seen = served.wake_count()
        if all(ring.closed for ring in rings):
            return
        found = served.claim(seen)
        if found is None:
            continue
        ring, writer = found
        which, number = rings.index(ring), writer.indices()[0]
        if number % 3 == 0 and (which, number) not in given_up:
            given_up.add((which, number))
            ring.recover(WORKER, thread=True)
            ring.serve(WORKER)
            continue
        with writer:
            encoder.publish(writer, [rows_of(which, number)], BATCH)


class PoolJob(Job):
    """A consumer of two segments, and a worker."""

    participant = WORKER

    def __init__(self, kind, mode, quick, rng):
        super().__init__(kind, mode, quick, rng)
        self.hows = (signal.SIGSTOP,) if mode == "worker stops" else HOWS

    def fault_free(self):
        self.round()
        self.round()

    def one(self, orders):
        self.orders, self.trips = orders, [Trip(SLOTS), Trip(SLOTS)]
        self.fd = os.memfd_create("wake")
        os.ftruncate(self.fd, WAKE_LINES)
        for trip in self.trips:
            trip.ring.use_wake_file(self.fd)
        self.start(WORKER)
        for number in range(BATCHES):
            if number % 2:
                until(lambda: self.tend() or self.worker.waits(), "the worker waits", HANG_S)
            slots = [trip.dispatch([number], seq=number) for trip in self.trips]
            for which, (trip, slot) in enumerate(zip(self.trips, slots, strict=True)):
                while trip.ring.wait_ready(slot, MOMENT_S) < 0:
                    self.tend()
                if not np.array_equal(trip.take(slot), rows_of(which, number)):
                    self.counts["changed"] += 1
        self.end()
        self.counts["batches"] += 2 * BATCHES

    def start(self, role):
        self.worker = Child(role, serve, [trip.ring for trip in self.trips], self.fd)

    def tend(self):
        """Let a stopped worker continue; recover a dead one in both segments and start another in its place."""
        if self.worker.stands_still():
            os.kill(self.worker.pid, signal.SIGCONT)
        if self.worker.ended() and self.worker.code != 0:
            if self.worker.code not in (-strike.how or 3 for strike in POINTS.strikes() if strike.done):
                self.wrong(f"after {self.orders} the worker ended with {self.worker.code}")
            for trip in self.trips:
                trip.ring.recover(WORKER)
            self.start(0)

    def end(self):
        for trip in self.trips:
            trip.ring.close()
        until(lambda: self.tend() or (self.worker.ended() and self.worker.code == 0), "the worker ends", HANG_S)
        for trip in self.trips:
            if trip.ring.circulating != SLOTS:
                self.wrong(f"after {self.orders} {trip.ring.circulating} slots circulate")
            trip.end()
        os.close(self.fd)


if __name__ == "__main__":
    main(PoolJob)

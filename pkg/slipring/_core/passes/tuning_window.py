"""The measurements of a loader over some batches, with a fixed number of workers, and how to compare them."""

import dataclasses
import math

WAITS = 0.05  # share of the time; a consumer that waits no more has nothing to gain
WORTH = 1.05  # more workers stay if batches come faster by this factor
DOUBTFUL = 1.15  # and are measured once more, if by less than this for each doubling
COSTS = 0.95  # fewer workers stay if batches do not come slower than by this factor
SPARE = 1.1  # workers are not all equally fast
FEWER = 0.75  # of the workers: fewer are tried if so many, at most, would make as many batches


@dataclasses.dataclass(frozen=True)
class TuningWindow:
    """The measurements of some batches; times in seconds per batch."""

    workers: int
    batches: int
    step: float  # from one batch to the next
    waited: float  # of that, by the consumer
    busy: float  # summed over workers: reading and collating
    cpu: float  # of that, on a processor, or waiting for one
    first: float = 0.0  # of the waiting, for the first batch of an iteration, which no number of workers avoids

    @property
    def supply(self) -> float:
        """float: batches per second that busy workers make; unlike `rate`, it does not depend on bursts."""
        return self.workers / max(self.busy, 1e-9)

    @property
    def rate(self) -> float:
        """float: batches per second. A window that has more of them than its workers can make has caught a burst."""
        return min(1 / self.step, self.supply)

    @property
    def wait_share(self) -> float:
        """float: the share of the consumer's time that it waits."""
        return min(1.0, (self.waited - self.first) / self.step)

    @property
    def needed(self):
        """float: workers that make batches as fast as the consumer could take them."""
        return self.busy / max(self.step - self.waited, self.step / 1000)

    @property
    def on_cpu(self):
        """float: the share of a worker's busy time that it was on a processor."""
        return min(1.0, self.cpu / self.busy) if self.busy > 0 else 1.0

    def with_(self, other):
        """Return one window for this one and another."""
        batches = self.batches + other.batches

        def mean(name):
            mine, its = getattr(self, name) * self.batches, getattr(other, name) * other.batches
            return (mine + its) / batches

        return TuningWindow(self.workers, batches, *map(mean, ("step", "waited", "busy", "cpu", "first")))


def _doublings(window, more):
    return max(1.0, math.log2(more.workers / window.workers))


def is_doubtful(before, window):
    """Return whether a window must be measured once more, after the number of workers has changed."""
    if window.workers > before.workers:
        return COSTS <= window.rate / before.rate < DOUBTFUL ** _doublings(before, window)
    return window.rate < before.rate * COSTS or window.wait_share > before.wait_share + WAITS


def is_slower(before, window):
    """Return whether fewer workers, and not the loop itself, made the loop slower."""
    waited = window.waited - before.waited
    return window.rate < before.rate * COSTS and waited > (window.step - before.step) / 2


def with_fewer(window, windows):
    """Return how many workers may be as fast as those of a window; its own number if none are worth a try."""
    n, rate = window.workers, max(window.rate, window.supply)
    slower = [each for each in windows if each.workers < n and each.rate < window.rate * COSTS]
    if not slower:
        return (n + 1) // 2
    # With more of the slower ones, the rate rises in proportion up to the window's.
    enough = min(math.ceil(each.workers * rate / each.rate * SPARE) for each in slower)
    return enough if enough <= FEWER * n else n


def best(windows):
    """Return the window with the highest rate, where each doubling of the workers must bring 5 %."""
    return max(windows, key=lambda each: each.rate / WORTH ** math.log2(each.workers))


def saturation(workers, measured):
    """Return (workers, their rate, most workers, their rate) if the most bring hardly anything; otherwise None.

    `measured` has (workers, batches per second) of each window.
    """
    rates = {}
    for number, rate in measured:
        rates.setdefault(number, []).append(rate)
    most = max(rates, default=0)
    if workers not in rates or most <= workers:
        return None
    rate, its = (sum(rates[number]) / len(rates[number]) for number in (workers, most))
    flat = its < rate * WORTH ** max(1.0, math.log2(most / workers))
    return (workers, rate, most, its) if flat else None

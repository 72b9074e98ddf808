"""The measurements of a loader over some batches, with a fixed number of workers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Window:
    """The measurements of some batches; times in seconds per batch."""

    workers: int
    batches: int
    step: float  # from one to the next
    waited: float  # of that, by the consumer
    busy: float  # summed over workers: reading and collating
    cpu: float  # of that, on a processor, or kept from one by others
    first: float = 0.0  # of the waiting, for the first batch of an iteration, which takes what it takes

    @property
    def rate(self) -> float:
        """float: batches per second."""
        return 1 / self.step

    @property
    def wait_share(self) -> float:
        """float: of the consumer's time."""
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
        """Return this window and another one as one."""
        batches = self.batches + other.batches

        def mean(name):
            mine, its = getattr(self, name) * self.batches, getattr(other, name) * other.batches
            return (mine + its) / batches

        return Window(self.workers, batches, *map(mean, ("step", "waited", "busy", "cpu", "first")))

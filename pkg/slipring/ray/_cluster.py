"""A loader's side of Ray's cluster: its address, the data that the loader reads, and its `Coordinator`."""

import weakref
from functools import partial

from slipring._core.ring.process import Owner
from slipring.errors import LoaderTimeout, shown

ANSWER_S = 300  # limit for an answer of the coordinator, which a busy machine may delay
END_S = 5  # limit for ending an execution in an orderly way


def address_and_namespace():
    """Return (address, namespace) of the cluster that this process belongs to."""
    import ray

    if not ray.is_initialized():
        raise RuntimeError("this process is in no cluster: call ray.init() first")
    context = ray.get_runtime_context()
    return context.gcs_address, context.namespace


def check(address, coordinator):
    """Raise an exception if this process has left the cluster, or the pickled `Coordinator` does not answer."""
    import ray
    from ray import cloudpickle

    if not ray.is_initialized() or ray.get_runtime_context().gcs_address != address:
        raise RuntimeError(
            f"this process has left the Ray cluster at {address}, where the loader's blocks are: ray.shutdown() was "
            "called. Close the loader first; after another ray.init() make a new one"
        )
    try:
        ray.get(cloudpickle.loads(coordinator).__ray_ready__.remote(), timeout=ANSWER_S)
    except ray.exceptions.GetTimeoutError:
        raise RuntimeError(
            f"the actor that hands out the loader's blocks has not answered within {ANSWER_S} s: the Ray cluster at "
            f"{address} is shut down, or overloaded"
        ) from None


def iterator_of(given):
    """Return the ``ray.data.DataIterator`` of the user's argument."""
    import ray.data

    if isinstance(given, ray.data.Dataset):
        given = given.iterator()
    if not isinstance(given, ray.data.DataIterator):
        raise TypeError(f"iterator must be a ray.data.DataIterator or a ray.data.Dataset, not {shown(given)}")
    return given


def split_of(iterator):
    """Return [rank, number of ranks] of the part of the dataset that an iterator gives."""
    if not hasattr(iterator, "_coord_actor"):
        return [0, 1]
    return [iterator._output_split_idx, iterator.world_size()]


def look_at_order(iterator):
    """Find out whether the data's order repeats; return a function from a timeout in seconds to the answer.

    The answer is (whether Ray keeps the order, names of the steps that shuffle with another seed each time). Only a
    split's coordinator has its dataset. It is called now, because it may be dead later.
    """
    import ray

    def look(owner):  # Ray pickles it by value: the coordinator's process may lack slipring
        steps = []
        for step in owner._base_dataset._logical_plan.dag.post_order_iter():
            seed = getattr(step, "seed_config", None)
            if seed is not None and (seed.seed is None or seed.reseed_after_execution):
                steps.append(step.name)
        return owner._base_dataset.context.execution_options.preserve_order, steps

    coordinator = getattr(iterator, "_coord_actor", None)
    if coordinator is None:
        found = look(iterator)  # look now: keeping the iterator would keep the data's blocks in the store
        return lambda timeout: found
    asked = coordinator.__ray_call__.remote(look)
    return lambda timeout: ray.get(asked, timeout=timeout)


def why_unordered(kept, shuffles):
    """Return the reason why another execution may give other rows, or None."""
    if not kept:
        return (
            "Ray Data gives blocks in the order in which its tasks end. Set "
            "ray.data.DataContext.get_current().execution_options.preserve_order = True before the dataset is made"
        )
    if shuffles:
        return f"{shuffles[0]} shuffles with another seed each time. Give it seed=, a number"
    return None


class Ingest:
    """A loader's `Coordinator`: an actor on this node, ending with this object; it answers `threads` calls at once."""

    def __init__(self, iterator, keep, turns, threads):
        import ray
        from ray import cloudpickle
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from slipring.ray._coordinator import Coordinator

        self._order = look_at_order(iterator)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made = ray.remote(Coordinator).options(
            num_cpus=0, max_concurrency=threads, scheduling_strategy=here, enable_task_events=False
        )
        self.coordinator = made.remote(iterator, keep, turns)
        self.pickled = cloudpickle.dumps(self.coordinator)
        self.begun = set()  # the passes that the coordinator has begun
        self.generation = 0  # number of the last reset
        self._owner = Owner()  # a forked child has no connection to Ray
        self._end = weakref.finalize(self, _end, self.coordinator, self._owner)
        self._end.atexit = False  # an actor ends with its creator's process

    def begin(self, run, known):
        """Note a new pass; return a function that ends it at the coordinator, whether or not it was read fully.

        `known` is the pass's name for the coordinator.
        """
        self.begun.add(run)
        return partial(_over, self.coordinator, known, self._end, self._owner)

    def reset(self, timeout):
        """Make the coordinator forget all passes, so that one of them can begin again in new workers."""
        import ray

        self.generation += 1
        try:
            asked = self.coordinator.reset.remote(self.generation, timeout)
            done = ray.get(asked, timeout=timeout + END_S if timeout else None)
        except ray.exceptions.GetTimeoutError:
            done = False
        if not done:
            raise LoaderTimeout(
                f"the pass before could not be ended within timeout={timeout} s: Ray's data gives no next block, and "
                "cannot be interrupted meanwhile. Try again, or make a new loader"
            )
        self.begun = set()

    def check_repeats(self, timeout):
        """Raise ValueError if another execution of the data may give other rows."""
        import ray

        try:
            why = why_unordered(*self._order(timeout))
        except ray.exceptions.GetTimeoutError:
            raise LoaderTimeout(
                f"the split's coordinator does not answer within timeout={timeout} s how its data is shuffled"
            ) from None
        if why:
            raise ValueError(f"a state would be of no use: {why}")

    def stats(self, timeout):
        """Return the text of ``Dataset.stats()`` for the latest execution."""
        import ray

        return ray.get(self.coordinator.stats.remote(), timeout=timeout)

    def close(self):
        """End the actor and the executions that it began in the cluster."""
        import ray

        if self._end.alive and self._owner.is_here and ray.is_initialized():
            self.generation += 1
            ray.wait([self.coordinator.reset.remote(self.generation, END_S)], timeout=END_S)
            self._end()


def _over(coordinator, run, ending, owner):
    """End a pass at its `Coordinator`. The finalizer `ending` is alive as long as the actor."""
    import ray

    if ending.alive and owner.is_here and ray.is_initialized():
        coordinator.end.remote(run)


def _end(coordinator, owner):
    """Kill a `Coordinator`: Ray keeps an actor whose handle was pickled, even if nothing refers to it."""
    import ray

    if owner.is_here and ray.is_initialized():
        ray.kill(coordinator)

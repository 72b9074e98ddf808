"""The end of an epoch: a state after its last batch, and iterators that a load has ended."""

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring import BatchSampler  # noqa: E402
from slipring.adapters.torchdata import StatefulDataLoader, torchdata_state  # noqa: E402
from slipring.errors import Closed  # noqa: E402
from tests.support import stateful  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.samplers import Passes  # noqa: E402
from tests.support.torch_datasets import Augmented, Counting, PlainRange  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]


class Laps(stateful.Laps, stateful.Range, data.IterableDataset):
    """Its state has the number of its passes."""


def generator():
    return torch.Generator().manual_seed(4)


def ours(rank=0, ranks=1):
    return BatchSampler(10, 4, shuffle=True, seed=1, rank=rank, world_size=ranks)


KINDS = {
    "in order": lambda: (range(10), {}),
    "sample by sample": lambda: (range(5), {"batch_size": None}),
    "shuffled": lambda: (range(10), {"shuffle": True}),
    "shuffled by a generator": lambda: (range(10), {"shuffle": True, "generator": generator()}),
    "dropped last": lambda: (range(10), {"shuffle": True, "drop_last": True}),
    "drawn": lambda: (Augmented(10), {"shuffle": True, "rng": "batch"}),
    "batch sampler": lambda: (range(10), {"batch_sampler": ours(), "batch_size": 1}),
    "a rank's batch sampler": lambda: (range(10), {"batch_sampler": ours(1, 2), "batch_size": 1}),
    "stateful sampler": lambda: (range(10), {"sampler": stateful.Backwards(10)}),
    "sampler that counts its passes": lambda: (range(10), {"sampler": Passes(10)}),
    "stateful map": lambda: (stateful.Reads(10), {}),
    "stateful stream": lambda: (Laps(), {}),
    "stream": lambda: (PlainRange(), {}),
    "pinned": lambda: (range(10), {"shuffle": True, "pin_memory": True}),
    "device": lambda: (range(10), {"shuffle": True, "device": "cpu"}),
    "stream on a device": lambda: (Counting(), {"device": "cpu"}),
}


def plain(batch):
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else torch.as_tensor(batch).tolist()


def taken(batches, count=None):
    return [plain(batch) for batch in (batches if count is None else (next(batches) for _ in range(count)))]


def saved(loader):
    return json.loads(json.dumps(loader.state_dict()))


WORKERS = pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, True), (1, False), slow(2, False)])


@WORKERS
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_after_the_last_batch_continues_with_the_next_epoch(make, kind, num_workers, persistent):
    def loader():
        dataset, options = KINDS[kind]()
        return make(
            dataset, **{"batch_size": 4, "num_workers": num_workers, "persistent_workers": persistent, **options}
        )

    def put(generators):
        torch.set_rng_state(generators[0]), random.setstate(generators[1]), np.random.set_state(generators[2])

    one, other = loader(), loader()
    count = len(taken(loader()))
    batches = iter(one)
    taken(batches, count)
    state = saved(one)
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()
    assert not state["finished"] and taken(batches) == []
    later, end = [taken(one) for _ in range(2)], saved(one)
    torch.manual_seed(99)
    other.load_state_dict(state)
    if not persistent:  # a program may restore them before iter() or after it
        put(generators)
    batches = iter(other)
    if persistent:
        put(generators)
    assert saved(other) == state
    assert [taken(batches), taken(other)] == later
    assert saved(other) == end


def test_a_step_of_several_devices_that_is_not_full_does_not_count_as_a_rest(make):
    def loader():
        return make(range(5), device=["cpu", "cpu"])

    one, other = loader(), loader()
    batches = iter(one)
    taken(batches, 2)
    other.load_state_dict(saved(one))
    assert taken(batches) == [] and taken(other) == taken(one) != []


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["in order", "stateful stream", "stream"])
def test_a_state_in_torchdatas_form_after_the_last_batch_continues_with_the_next_epoch(make, kind, num_workers):
    def loader():
        return make(KINDS[kind]()[0], batch_size=4, num_workers=num_workers)

    one, other = loader(), loader()
    batches = iter(one)
    taken(batches, len(taken(loader())))
    other.load_state_dict(torchdata_state(one))
    assert taken(batches) == [] and taken(other) == taken(one)


@WORKERS
def test_torchdatas_loader_has_no_batch_after_the_last_one(num_workers, persistent):
    def loader():
        return StatefulDataLoader(range(6), 2, num_workers=num_workers, persistent_workers=persistent)

    with loader() as one, loader() as other:
        batches = iter(one)
        taken(batches, 3)
        other.load_state_dict(saved(one))
        assert [len(taken(other)) for _ in range(2)] == [0, 3]


OLD = {
    "batches": {"dataset": range(10)},
    "stream": {"dataset": Counting()},
    "stateful map": {"dataset": stateful.Reads(10)},
    "pinned": {"dataset": range(10), "pin_memory": True},
    "device": {"dataset": range(10), "device": "cpu", "preload": 2},
    "torchdata": {"dataset": range(10), "by": StatefulDataLoader},
}


@WORKERS
@pytest.mark.parametrize("what", ["a state", "nothing"])
@pytest.mark.parametrize("kind", OLD)
def test_an_iterator_from_before_a_load_raises(make, kind, what, num_workers, persistent):
    options = {"batch_size": 2, "num_workers": num_workers, "persistent_workers": persistent, **OLD[kind]}
    if kind == "device" and not num_workers:
        options["preload"] = 0
    loader = options.pop("by", make)(**options)
    over = iter(loader)
    whole = taken(over)
    batches = iter(loader)
    taken(batches, 2)
    state = saved(loader) if what == "a state" else {}
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(Closed, match=r"load_state_dict\(\) has ended this iterator: make a new one"):
            next(batches)
    assert over is batches or taken(over) == []
    if state:
        assert saved(loader) == state
        assert len(taken(loader)) == len(whole) - 2
    assert taken(loader) and loader.state_dict()["finished"]
    loader.close()

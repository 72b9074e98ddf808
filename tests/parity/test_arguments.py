"""Arguments: torch's checks with torch's texts, torch's attributes, torch's warnings."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.torch_datasets import Sized, Stream  # noqa: E402

NUMBERS = Values(list(range(10)))

WRONG = [
    {"num_workers": -1},
    {"num_workers": "2"},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": 1.5},
    {"batch_size": True},
    {"drop_last": 3},
    {"batch_size": None, "drop_last": True},
    {"shuffle": True, "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"shuffle": True, "generator": 3},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "thread", "num_workers": 1},
    {"no_such_argument": 1},
    {"dataset": Stream(), "shuffle": True},
    {"dataset": Stream(), "sampler": [1]},
    {"dataset": Stream(), "batch_sampler": [[1]]},
    {"dataset": [], "shuffle": True, "batch_size": 0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: " ".join(wrong))
def test_a_wrong_argument_is_refused_in_torchs_words(make, wrong):
    told = []
    for cls in (data.DataLoader, make):
        try:
            cls(**{"dataset": NUMBERS, **wrong})
        except Exception as error:
            told.append((type(error), str(error).replace("slipring.torch.loader.", "")))
        else:
            told.append(None)
    theirs, ours = told
    if theirs is not None and "unexpected keyword" in theirs[1]:
        assert ours[0] is theirs[0]
    else:
        assert ours == theirs


# torch's own half-made iterator with workers cannot be dropped without a warning: it is not made here.


def test_a_wrong_generator_is_refused_at_iter_as_by_torch():
    told = []
    for cls, num_workers in ((data.DataLoader, 0), (DataLoader, 0), (DataLoader, 1)):
        with pytest.raises(TypeError) as raised:
            iter(cls(NUMBERS, generator=np.random.default_rng(0), num_workers=num_workers))
        told.append(str(raised.value))
    assert told == told[:1] * 3


def test_nothing_to_prefetch_is_refused_at_iter_as_by_torch():
    text = "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
    with pytest.raises(AssertionError, match=f"^{text}$"):
        iter(DataLoader(NUMBERS, num_workers=1, prefetch_factor=0))


class OfNumpy(data.Sampler):
    """Its attribute `generator` is not torch's."""

    def __init__(self):
        self.generator = np.random.default_rng(5)

    def __iter__(self):
        return iter(self.generator.permutation(6).tolist())

    def __len__(self):
        return 6


def test_a_sampler_may_draw_from_a_generator_of_numpys(make):
    theirs, ours = (
        [batch.tolist() for batch in cls(list(range(6)), 2, sampler=OfNumpy(), num_workers=2)]
        for cls in (data.DataLoader, make)
    )
    assert ours == theirs


SHOWN = (
    "batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "pin_memory_device",
    "prefetch_factor", "persistent_workers", "in_order", "worker_init_fn", "generator", "collate_fn",
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": None},
        {"batch_sampler": [[1]]},
        {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 5, "in_order": False, "timeout": 3},
    ],
)
def test_a_loader_shows_torchs_attributes(make, options):
    ours, theirs = make(NUMBERS, **options), data.DataLoader(NUMBERS, **options)
    assert isinstance(ours, data.DataLoader)
    for name in SHOWN:
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("dataset", "sampler", "batch_sampler"):
        assert type(getattr(ours, name)) is type(getattr(theirs, name)), name
    assert len(ours) == len(theirs)


def test_too_many_workers_are_warned_of(make):
    with pytest.warns(UserWarning, match="This DataLoader will create 1000 worker processes in total"):
        make(NUMBERS, num_workers=1000)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_longer_than_it_says_is_warned_of(make, num_workers):
    loader = make(Sized(10, sharded=False, length=4), batch_size=None, num_workers=num_workers)
    assert len(loader) == 4
    with pytest.warns(UserWarning, match="Length of IterableDataset .* was reported to be 4"):
        assert len(list(loader)) == (10 if num_workers == 0 else 20)


def test_a_stream_as_long_as_it_says_is_not_warned_of(make):
    with pytest.raises(TypeError, match="has no len"):
        len(make(Stream()))
    loader = make(Sized(10, length=10), batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(loader) == len(list(loader)) == 5


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinned_memory_without_an_accelerator_is_warned_of(make, num_workers):
    loader = make(NUMBERS, batch_size=5, pin_memory=True, num_workers=num_workers)
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator"):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]

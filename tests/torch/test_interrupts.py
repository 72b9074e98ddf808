"""slipring.torch if a signal handler raises, several threads call next(), or an iteration fails to start."""

import signal
import sys
import warnings

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from slipring.errors import Closed  # noqa: E402
from slipring.torch import DataLoader, Device  # noqa: E402
from tests.support.inside import engine_of, engines_of, preloader_of  # noqa: E402
from tests.support.signals import Raised, handling, raising_once  # noqa: E402
from tests.support.stateful import OwnIterator  # noqa: E402
from tests.support.torch_datasets import Sized  # noqa: E402


def rest(iterator):
    return [batch.tolist() for batch in iterator]


def test_another_thread_never_finds_a_batch_that_is_not_on_its_device_yet():
    found = []
    with DataLoader(range(8), 2, device=Device("cpu", transform=lambda batch: ("moved", batch))) as loader:
        it = iter(loader)

        def look(frame, event, arg):  # as a thread that runs between any two instructions
            frame.f_trace_opcodes = True
            found.extend(part.value for step in preloader_of(it).ready for part in step.parts)
            return look

        sys.settrace(look)
        try:
            assert len(list(it)) == 4
        finally:
            sys.settrace(None)
    assert found and all(type(one) is tuple and one[0] == "moved" for one in found)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_cannot_be_brought_to_a_device_is_not_brought_again(num_workers):
    def refuse(batch):
        if batch[0] == 4:
            raise ZeroDivisionError
        return batch

    with DataLoader(range(12), 4, num_workers=num_workers, device=Device("cpu", transform=refuse)) as loader:
        it = iter(loader)
        assert next(it).tolist() == [0, 1, 2, 3]
        with pytest.raises(ZeroDivisionError):
            next(it)
        state = loader.state_dict()
        assert rest(it) == [[8, 9, 10, 11]]
        del it
        loader.load_state_dict(state)
        assert rest(loader) == [[8, 9, 10, 11]]


def test_a_batch_that_a_handler_has_interrupted_on_its_way_to_a_device_is_brought_again():
    def transform(batch):
        if batch[0] == 4:
            signal.raise_signal(signal.SIGUSR1)
        return batch

    for arguments in ({}, {"num_workers": 2, "preload": 0}):
        loader = DataLoader(range(12), 4, **grouped(transform=transform, device="cpu", **arguments))
        with handling(raising_once(Raised)), loader:
            it = iter(loader)
            assert next(it).tolist() == [0, 1, 2, 3]
            with pytest.raises(Raised):
                next(it)
            assert rest(it) == [[4, 5, 6, 7], [8, 9, 10, 11]]
            del it


class FailingSource(OwnIterator, torch.utils.data.IterableDataset):
    """The next iter() fails if `fails` is true."""

    fails = False

    def items(self):
        return range(12)

    def __iter__(self):
        if self.fails:
            self.fails = False
            raise ZeroDivisionError
        return super().__iter__()


def test_a_state_that_was_loaded_still_holds_where_iter_has_failed():
    first = DataLoader(FailingSource(), 4)
    next(iter(first))
    source = FailingSource()
    loader = DataLoader(source, 4)
    loader.load_state_dict(first.state_dict())
    source.fails = True
    with pytest.raises(ZeroDivisionError):
        iter(loader)
    assert rest(loader) == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_the_kept_workers_are_lent_again_where_an_iteration_did_not_begin(monkeypatch):
    def refuse(*what, **more):
        raise KeyboardInterrupt

    with DataLoader(range(12), 4, num_workers=1, persistent_workers=True) as loader:
        with monkeypatch.context() as patched:
            patched.setattr("slipring.torch.iterators.TorchIteration.begin", refuse)
            with pytest.raises(KeyboardInterrupt):
                iter(loader)
        it = iter(loader)
        assert engine_of(it) is engines_of(loader).engine
        assert len(rest(it)) == 3
        del it


class InterruptedOrder(torch.utils.data.Sampler):
    """Six indices; Ctrl-C comes before the fourth, once."""

    def __init__(self, armed):
        self.armed = armed

    def __iter__(self):
        for i in range(6):
            if i == 3 and self.armed:
                self.armed.clear()
                raise KeyboardInterrupt
            yield i

    def __len__(self):
        return 6


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_interrupted_sampler_loses_no_batch_of_a_step_on_several_devices(num_workers):
    def loader(armed):
        order = InterruptedOrder(armed)
        return DataLoader(range(6), 1, sampler=order, device=["cpu", "cpu"], num_workers=num_workers)

    with loader([True]) as one:
        it = iter(one)
        with pytest.raises(KeyboardInterrupt):
            list(it)
        with pytest.raises(Closed):
            list(it)
        state = one.state_dict()
    assert state["delivered"] in (0, 2) and not state["finished"]
    with loader([]) as other:
        other.load_state_dict(state)
        assert [part.item() for step in other for part in step] == [*range(state["delivered"], 6)]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_before_which_the_iteration_is_closed_is_not_returned(make, monkeypatch, num_workers, device):
    loader = make(Sized(10, sharded=False, length=4), batch_size=None, num_workers=num_workers, device=device)
    assert len(loader) == 4
    iterator = iter(loader)
    assert [int(next(iterator)) for _ in range(4)] == [0, 1, 2, 3]
    # torch warns of a batch more than the dataset has announced.
    monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: iterator.close())
    warnings.simplefilter("always")
    with pytest.raises(Closed):
        next(iterator)

"""The state of a `slipring.Loader` after signal handlers, in threads, and after its iterator was dropped."""

import signal
import threading
from functools import partial

import pytest

import slipring
from slipring import Loader
from slipring.errors import CorruptBatch
from tests.loader.kinds_of_states import FORKED, SIZE, N, made, taken
from tests.support.datasets import Made, Numbers, throw
from tests.support.processes import LONG_S
from tests.support.signals import Raised, handling, raising_once
from tests.support.stateful import Backwards, Counting

pytestmark = pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")


class Asking(Counting):
    """Requests the loader's state while it makes a sample."""

    def __iter__(self):
        for sample in super().__iter__():
            if sample == 6:
                self.loader.state_dict()
            yield sample


def test_a_dataset_that_asks_in_the_middle_of_a_batch_is_refused():
    data = Asking()
    data.loader = loader = Loader(data, SIZE)
    with loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(RuntimeError, match=r"state_dict\(\) was called while this thread makes a batch"):
            next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_signal_handler_can_ask_within_next(num_workers):
    said = []
    with Loader(range(N), SIZE, shuffle=True, num_workers=num_workers, workers=FORKED, seed=3) as loader:
        batches = iter(loader)

        def handler(*_):
            said.append(loader.state_dict())

        with handling(handler):
            for _ in range(3):
                signal.raise_signal(signal.SIGUSR1)
                next(batches)
            signal.raise_signal(signal.SIGUSR1)
    assert [state["delivered"] for state in said] == [0, 1, 2, 3]


def test_a_state_after_an_interrupted_next_is_refused():
    class Object(Counting):
        """Its own iterator, which continues after an exception."""

        def __iter__(self):
            return self

        def __next__(self):
            if self.at == self.n:
                raise StopIteration
            self.at += 1
            if self.at == 6:
                signal.raise_signal(signal.SIGUSR1)
            return self.at

    with handling(raising_once(Raised)), Loader(Object(), SIZE) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(Raised):
            next(batches)
        with pytest.raises(RuntimeError, match="samples of a batch that was not delivered"):
            loader.state_dict()
        with pytest.raises(slipring.errors.Closed, match="Raised that was raised while this process ran the dataset"):
            next(batches)


@pytest.mark.parametrize("how", ["loader", "iterator"])
def test_a_close_while_another_thread_makes_a_batch_leaves_the_batch_to_that_thread(how):
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(Counting):
        def __iter__(self):
            for sample in super().__iter__():
                if sample == 6:
                    begun.set()
                    go_on.wait(LONG_S)
                yield sample

    loader = Loader(Waiting(), SIZE)
    batches = iter(loader)
    next(batches)

    def read():
        with pytest.raises(slipring.errors.Closed):
            next(batches)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert begun.wait(LONG_S)
    (loader if how == "loader" else batches).close()
    assert not go_on.is_set()
    with pytest.raises(RuntimeError, match="was closed while a batch was being made"):
        loader.state_dict()
    go_on.set()
    thread.join(LONG_S)
    assert not thread.is_alive()
    if how == "iterator":
        assert taken(iter(loader))
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_of_an_iterator_that_is_gone_is_that_of_its_last_batch(num_workers):
    with made("stateful-iterable", num_workers=num_workers) as loader:
        whole = taken(iter(loader))
    with made("stateful-iterable", num_workers=num_workers) as loader:
        batches = iter(loader)
        begun = taken(batches, 3)
        del batches
        state = loader.state_dict()
    assert state["workers"][0]["states"] == {"dataset": {"at": 12 if num_workers == 0 else 8}}
    with made("stateful-iterable", num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert begun + taken(iter(loader)) == whole


class Loud:
    """Raises a signal when it is unpickled."""

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.number == 5:
            signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("kind", [Raised, KeyboardInterrupt])
def test_an_exception_while_a_batch_is_unpickled_takes_its_place_and_ctrl_c_costs_no_batch(kind):
    with (
        handling(raising_once(kind)),
        Loader(Made(Loud, 12), SIZE, collate_fn=list, num_workers=1, workers=FORKED) as loader,
    ):
        batches = iter(loader)
        next(batches)
        if kind is Raised:
            with pytest.raises(CorruptBatch, match="Raised") as caught:
                next(batches)
            assert isinstance(caught.value.__cause__, Raised)
        else:
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            assert loader.state_dict()["delivered"] == 1
            assert [loud.number for loud in next(batches)] == [4, 5, 6, 7]
        assert loader.state_dict()["delivered"] == 2
        assert [loud.number for loud in next(batches)] == [8, 9, 10, 11]


def raised_at(index):
    """Yield indices; raise a signal at one of them."""
    for i in range(12):
        if i == index:
            signal.raise_signal(signal.SIGUSR1)
        yield i


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_of_a_handler_within_a_sampler_is_the_samplers_and_comes_in_its_turn(num_workers):
    with (
        handling(raising_once(Raised)),
        Loader(range(12), SIZE, sampler=raised_at(9), num_workers=num_workers, workers=FORKED) as loader,
    ):
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(Raised):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_ctrl_c_in_a_sampler_ends_the_iteration_and_the_state_says_where(num_workers):
    options = {"num_workers": num_workers, "workers": FORKED, "prefetch_factor": 1}
    with handling(raising_once(KeyboardInterrupt)), Loader(range(12), SIZE, sampler=raised_at(9), **options) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(KeyboardInterrupt):
            next(batches), next(batches)
        with pytest.raises(slipring.errors.Closed, match=r"KeyboardInterrupt that was raised .* ran the sampler"):
            list(batches)
        with pytest.raises(slipring.errors.Closed):
            next(batches)
        state = loader.state_dict()
    assert not state["finished"]
    with Loader(range(12), SIZE, sampler=range(12), **options) as loader:
        loader.load_state_dict(state)
        assert [i for batch in loader for i in batch.tolist()] == [*range(4 * state["delivered"], 12)]


def test_a_loader_that_is_used_while_a_handlers_exception_is_handled_delivers_its_own_errors_once():
    with handling(raising_once(Raised)):
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Raised:
            with Loader(Numbers(12, {5: partial(throw, ZeroDivisionError)}), SIZE) as loader:
                batches = iter(loader)
                assert next(batches).tolist() == [0, 1, 2, 3]
                with pytest.raises(ZeroDivisionError):
                    next(batches)
                assert next(batches).tolist() == [8, 9, 10, 11]


class Failing(Backwards):
    """A sampler that raises an exception once, in the middle, and can continue."""

    failed = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 5 and not self.failed:
            self.failed = True
            raise LookupError
        if self.at == self.n:
            self.at = 0
            raise StopIteration
        self.at += 1
        return self.n - self.at


def test_a_sampler_that_has_failed_is_not_at_its_end_in_a_state():
    sampler = Failing(12)
    with Loader(range(12), SIZE, sampler=sampler) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [11, 10, 9, 8]
        with pytest.raises(LookupError):
            next(batches)
        state = loader.state_dict()
        assert not state["finished"] and state["delivered"] == 1
    with Loader(range(12), SIZE, sampler=sampler) as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader][-1][-1] == 0

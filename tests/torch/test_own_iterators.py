"""Subclasses of the loader whose `_get_iterator` returns another iterator: torch's own, or any."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402
from torch.utils.data import dataloader as torchs  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402

POINTS = data.TensorDataset(torch.arange(8))
ORDER = [[0, 1, 2], [3, 4, 5], [6, 7]]


class OwnIterator(torchs._MultiProcessingDataLoaderIter):
    """A subclass of torch's iterator, as in litdata and torch_geometric."""


class OwnInlineIterator(torchs._SingleProcessDataLoaderIter):
    """The same without workers."""


class Own(DataLoader):
    def _get_iterator(self):
        return OwnIterator(self) if self.num_workers else OwnInlineIterator(self)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_torchs_iterator_in_a_subclass_gives_every_epoch_and_has_no_state(num_workers, persistent):
    with Own(POINTS, 3, num_workers=num_workers, persistent_workers=persistent) as loader:
        state = loader.state_dict()
        for _ in range(2):
            assert [batch.tolist() for (batch,) in loader] == ORDER
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match=r"Own._get_iterator\(\) returns a Own\w*Iterator"):
            loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        with pytest.raises(RuntimeError, match="cannot resume from a state"):
            iter(loader)
        loader.load_state_dict({})
        assert [batch.tolist() for (batch,) in loader] == ORDER


def test_a_subclass_may_return_any_iterator():
    class Plain(DataLoader):
        def _get_iterator(self):
            return iter([[0, 1, 2]])

    with Plain(POINTS, 3) as loader:
        assert list(loader) == list(loader) == [[0, 1, 2]]

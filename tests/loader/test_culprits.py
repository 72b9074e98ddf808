"""The sample that failed: in the message, and in attributes of WorkerError."""

import pytest

import slipring
from tests.support.datasets import Made, Unshowable, throw
from tests.support.kinds import loading
from tests.support.options import grouped


class Corrupt:
    """A dataset of 1024 samples, one of which cannot be read."""

    def __len__(self):
        return 1024

    def __getitem__(self, i):
        if i == 777:
            raise ValueError("corrupt file")
        return i


KINDS = {
    "a worker": {"num_workers": 1},
    "ranges": {"num_workers": 2, "chunk_size": 32},
    "threads": {"num_workers": 1, "start_method": "thread"},
    "none": {"num_workers": 0},
}


def failure(iterator):
    with pytest.raises(ValueError, match="corrupt file") as caught:
        list(iterator)
    return caught.value.__cause__


@pytest.mark.parametrize("kind", KINDS)
def test_the_sample_that_failed_is_named_with_its_row(kind):
    with slipring.Loader(Corrupt(), 256, **grouped(**KINDS[kind])) as loader:
        cause = failure(loader)
    assert isinstance(cause, slipring.WorkerError)
    assert (cause.index, cause.row, cause.seq) == (777, 9, 3)
    assert "index 777 (row 9 of batch 3)" in str(cause)


class AtOnce(Corrupt):
    """The same, with a method that reads several samples."""

    def __getitems__(self, indices):
        return [index if index == 777 else self[index] for index in indices]


def refuse(sample):
    if sample == 777:
        raise ValueError("corrupt file")
    return sample


class Twice(AtOnce):
    """It transforms its samples in an inner call, for several indices at a time."""

    inner = slipring.cached(AtOnce(), "1MiB").map(refuse)

    def __getitems__(self, indices):
        return self.inner.__getitems__(indices)


def kept_but_one():
    """A cache of a dataset that reads missing samples at once; it has two samples of the batch with 777."""
    data = slipring.cached(Twice(), "1MiB")
    _ = data[768], data[770]
    return data


WRAPPERS = {
    "mapped": lambda: slipring.cached(AtOnce(), "1MiB").map(refuse),
    "mapped twice": lambda: slipring.cached(AtOnce(), "1MiB").map(lambda sample: sample).map(refuse),
    "cached": lambda: slipring.cached(Twice(), "1MiB"),
    "cached in part": kept_but_one,
}


@pytest.mark.parametrize(("wrapper", "kind"), list(zip(WRAPPERS, KINDS)))
def test_the_sample_that_failed_is_named_where_a_wrapper_reads_several(wrapper, kind):
    options = {"start_method": "fork"} if kind in ("a worker", "ranges") else {}
    with slipring.Loader(WRAPPERS[wrapper](), 256, **grouped(**KINDS[kind], **options)) as loader:
        cause = failure(loader)
    assert (cause.index, cause.row, cause.seq) == (777, 9, 3)


class Tries(AtOnce):
    """Raises an error of its own after it has caught that of a sample."""

    def __getitems__(self, indices):
        try:
            return Twice.inner.__getitems__(indices)
        except ValueError:
            pass
        raise ValueError("corrupt file")


def refuse_all(samples):
    raise ValueError("corrupt file")


@pytest.mark.parametrize(("dataset", "options"), [(Tries(), {}), (range(256), {"collate_fn": refuse_all})])
def test_an_error_of_no_single_sample_names_none(dataset, options):
    with slipring.Loader(dataset, 256, **options) as loader:
        cause = failure(loader)
    assert (cause.index, cause.row, len(cause.indices)) == (None, None, 256)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_index_whose_repr_raises_does_not_hide_the_datasets_error(num_workers):
    dataset = Made(lambda i: throw(ValueError, "corrupt file"), 1)
    options = {"num_workers": num_workers, "start_method": "fork"}
    with loading(dataset, batch_sampler=[[Unshowable()]], **options) as loader:
        cause = failure(loader)
    assert cause.row == 0 and "Unshowable whose repr raises ZeroDivisionError" in cause.index


def test_the_sample_of_a_subset_that_failed_is_named_by_its_number_in_the_subset():
    data = pytest.importorskip("torch.utils.data").Subset(Corrupt(), range(700, 1000))
    with slipring.Loader(data, 50, num_workers=1) as loader:
        cause = failure(loader)
    assert (cause.index, cause.row, cause.seq) == (77, 27, 1)

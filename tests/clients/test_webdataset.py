"""webdataset's pipelines through our loaders."""

import io

import numpy as np
import pytest

pytest.importorskip("torch")
wds = pytest.importorskip("webdataset", reason="pip install -r requirements-clients.txt")

import slipring  # noqa: E402
import slipring.torch  # noqa: E402
from tests.support.shards import shard  # noqa: E402


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four tar files of ten samples each: an array and a class."""
    folder = tmp_path_factory.mktemp("shards")

    def samples(first):
        for i in range(first, first + 10):
            np.save(array := io.BytesIO(), np.full((8, 8), i, np.uint8))
            yield from ((f"{i:03}.cls", str(i).encode()), (f"{i:03}.npy", array.getvalue()))

    for number in range(4):
        shard(folder / f"{number}.tar", samples(10 * number))
    return str(folder / "{0..3}.tar")


def pipeline(shards, **options):
    return wds.WebDataset(shards, shardshuffle=False, **options).decode().to_tuple("npy", "cls")


def check(batches, size, kind):
    seen = []
    for arrays, classes in batches:
        assert type(arrays) is kind and arrays.shape == (size, 8, 8)
        assert (np.asarray(arrays)[:, 0, 0] == np.asarray(classes)).all()
        seen += [int(c) for c in classes]
    assert sorted(seen) == list(range(40))


def test_a_pipeline_that_batches_goes_through_our_loader_in_numpy(shards):
    with slipring.Loader(pipeline(shards).batched(5), None, num_workers=2) as loader:
        check(loader, 5, np.ndarray)
        check(loader, 5, np.ndarray)


def test_our_loader_batches_the_samples_of_a_pipeline(shards):
    with slipring.torch.DataLoader(pipeline(shards), 5, num_workers=2) as loader:
        import torch

        check(loader, 5, torch.Tensor)
        assert loader.stats().pickled_leaves == 0


def test_a_webloader_is_over_ours_while_ours_is_installed(shards):
    import torch

    with slipring.torch.install():
        loader = wds.WebLoader(pipeline(shards).batched(10), batch_size=None, num_workers=2)
    ours = loader.pipeline[0]
    assert type(ours) is slipring.torch.DataLoader
    # As webdataset's page has it: mix the samples of several workers' batches, and batch again.
    rebatched = loader.unbatched().shuffle(20).batched(8)
    check(rebatched, 8, torch.Tensor)
    assert ours.stats().batches == 4

"""Images in an epoch that n ranks begin and m ranks finish."""

import itertools
import json

import numpy as np
import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

import slipring  # noqa: E402
from slipring import images  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.shards import files, shard  # noqa: E402

SIZES = (10, 7, 1, 12, 5, 9, 4)  # samples per shard
WHOLE = [100 * k + n for k, size in enumerate(SIZES) for n in range(size)]


class Shards(images.TarStream, torch.utils.data.IterableDataset):
    """For torch's loader, which recognizes an iterable dataset by its class."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return [shard(folder / f"{k}.tar", files(n, 100 * k)) for k, n in enumerate(SIZES)]


def ranks(shards, n, seed=7, workers=0, **options):
    """Return the loaders of n ranks; `seed` seeds torch's workers."""
    crop = images.RandomResizedCrop((12, 16))
    return [
        DataLoader(
            Shards(shards, crop, target="json", rank=rank, world_size=n, **options),
            3,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed + rank),
        )
        for rank in range(n)
    ]


def read(loader, taken=None):
    """Return [number, the crop's bytes] of each sample of so many batches, and the state after them."""
    found = []
    for crops, target in itertools.islice(loader, taken):
        found += [(n, crop.tobytes()) for n, crop in zip(target["number"].tolist(), crops.numpy(), strict=True)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return found, state


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("taken", "before", "m", "behind"),
    [((3,), 2, 3, 0), ((3, 5), 0, 1, 2), ((2, 0, 9), 0, 7, 0), ((1, 6, 2, 1), 0, 3, 0), ((5, 5), 1, 2, 2)],
)
def test_other_ranks_read_the_unread_samples_and_draw_the_same_crops(shards, taken, before, m, behind, shuffle):
    n = len(taken)
    whole = dict(sample for loader in ranks(shards, n, workers=before, shuffle=shuffle) for sample in read(loader)[0])
    begun = ranks(shards, n, workers=before, shuffle=shuffle)
    parts = [read(loader, count) for loader, count in zip(begun, taken, strict=True)]
    seen = [sample for found, _ in parts for sample in found]
    resumed = ranks(shards, m, seed=99, workers=behind, shuffle=shuffle)
    rest = []
    for loader in resumed:
        loader.load_state_dict([state for _, state in parts])
        rest += read(loader)[0]
    assert sorted(number for number, _ in seen + rest) == WHOLE
    silent = {100 * k + i for k, size in enumerate(SIZES) for i in range(size) if not taken[k % n]}
    if before:
        assert all(whole[number] == crop for number, crop in seen)
        # (A rank without a delivered batch has no draws in its state.)
        assert all(whole[number] == crop for number, crop in rest if number not in silent)
    again = [sample for loader in resumed for sample in read(loader)[0]]
    assert sorted(number for number, _ in again) == WHOLE  # the next epoch


def test_a_divided_epoch_can_be_divided_again(shards):
    seen, states = [], []
    for n, taken in ((2, (2, 2)), (3, (1, 0, 1)), (3, (0, 0, 0)), (1, (2,)), (2, (None, None))):
        parts = []
        for loader, count in zip(ranks(shards, n, shuffle=True), taken, strict=True):
            if states:
                loader.load_state_dict(states)
            parts.append(read(loader, count))
        seen += [number for found, _ in parts for number, _ in found]
        states = [state for _, state in parts]
    assert sorted(seen) == WHOLE
    assert all(state["finished"] for state in states)


def test_states_of_other_shards_are_refused(shards):
    states = [read(loader, 1)[1] for loader in ranks(shards, 2)]
    (other,) = ranks(shards[:5], 1)
    with pytest.raises(ValueError, match="of rank 0's worker 0 is of 7 shards, divided among 2 ranks; here are 5 sh"):
        other.load_state_dict(states)


@pytest.mark.parametrize("shuffle", [False, True])
def test_states_of_another_shuffle_are_refused(shards, shuffle):
    stream, other = (images.TarStream(shards, target="json", shuffle=how) for how in (shuffle, not shuffle))
    samples = iter(stream)
    next(samples)
    state = samples.state_dict()
    with pytest.raises(ValueError, match=f"state is of shuffle={shuffle}, this is shuffle={not shuffle}"):
        iter(other).load_state_dict(state)
    with pytest.raises(ValueError, match=f"Resume with shuffle={shuffle}"):
        other.rest_of([[{"iterator": state}]], 2)


def test_one_ranks_state_is_refused_by_others(shards):
    (_, state), _ = [read(loader, 1) for loader in ranks(shards, 2)]
    for n, rank in ((3, 0), (2, 1)):
        with pytest.raises(ValueError, match=f"rank 0 of 2, by Shards; here is rank {rank} of {n}.*list of all ranks"):
            ranks(shards, n)[rank].load_state_dict(state)


class Decoded(images.Tar):
    """Counts the batches that are decoded into their slots."""

    whole = 0

    def fetch_into(self, indices, empty):
        type(self).whole += 1
        return super().fetch_into(indices, empty)


@pytest.mark.parametrize("face", ["slipring", "torch"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "chunk_size": 2}], ids=str)
def test_crops_by_position_are_the_same_in_other_ranks_also_of_whole_batches(shards, options, face):
    def crops(n, **options):
        data, found = Decoded(shards, images.RandomResizedCrop((12, 16)), target="json"), {}
        for rank in range(n):
            sampler = slipring.BatchSampler(
                len(data), 12 // n, shuffle=True, seed=4, rank=rank, world_size=n, drop_last=True
            )
            if face == "torch":
                options["generator"] = torch.Generator().manual_seed(4)
                loader = DataLoader(data, batch_sampler=sampler, rng="sample", **grouped(**options))
            else:
                loader = slipring.Loader(data, batch_sampler=sampler, rng="sample", seed=4, **grouped(**options))
            with loader:
                for crop, target in loader:
                    found.update(zip(target["number"].tolist(), [one.tobytes() for one in np.asarray(crop)]))
        return found

    Decoded.whole = 0
    want = crops(1)
    assert len(want) == 48 and len(set(want.values())) == 48
    assert Decoded.whole == (4 if face == "slipring" else 0)  # torch's own code makes batches without workers
    assert crops(3, **options) == want

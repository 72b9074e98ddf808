"""Tar shards as a stream: divided among ranks and workers, in the same order for all of them, resumable."""

import itertools
import json
import pickle
import random
import signal

import numpy as np
import pytest

import slipring
from slipring import images
from slipring.errors import ImageError
from tests.support.options import grouped
from tests.support.pictures import encoded, pixels
from tests.support.shards import files, plain, shard
from tests.support.signals import handling

FIT = images.Resize((12, 16))
SIZES = (10, 7, 1, 12, 5)  # samples per shard


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return [shard(folder / f"{k}.tar", files(n, 100 * k)) for k, n in enumerate(SIZES)]


def numbers(k):
    return [100 * k + n for n in range(SIZES[k])]


WHOLE = [number for k in range(len(SIZES)) for number in numbers(k)]


def stream(shards, transform=FIT, **options):
    return images.TarStream(shards, transform, target="json", **options)


def read(data, loader=slipring.Loader, **options):
    with loader(data, 4, **grouped(**options)) as batches:
        return numbers_of(batches)


def numbers_of(batches):
    return [number for _, target in batches for number in np.asarray(target["number"]).tolist()]


def test_without_workers_samples_come_as_they_lie(shards):
    data = stream(shards)
    assert [target["number"] for _, target in data] == WHOLE
    image, target = next(iter(data))
    assert np.array_equal(image, plain(target["number"], FIT))


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_each_shard_is_one_ranks_and_one_workers(shards, method):
    parts = []
    for rank in range(2):
        data = stream(shards, rank=rank, world_size=2)
        parts.append(read(data, num_workers=2, start_method=method))
    assert sorted(parts[0]) == numbers(0) + numbers(2) + numbers(4)
    assert sorted(parts[1]) == numbers(1) + numbers(3)


def pictures(data, **options):
    with slipring.Loader(data, None, **grouped(**options)) as samples:
        return {int(target["number"]): np.asarray(image).tobytes() for image, target in samples}


@pytest.mark.parametrize("options", [{"num_workers": 7}, {"num_workers": 2, "start_method": "thread"}])
def test_a_samples_crop_does_not_depend_on_the_workers(shards, options):
    data = stream(shards, images.RandomResizedCrop((12, 16)), shuffle=True)
    assert pictures(data, seed=3, **options) == pictures(data, seed=3, num_workers=0)
    assert pictures(data, seed=4, **options) != pictures(data, seed=3, num_workers=0)


def test_each_pass_has_an_order_of_its_own(shards):
    data = stream(shards, shuffle=True)
    with slipring.Loader(data, 4, num_workers=2, seed=1, persistent_workers=True) as loader:
        passes = [[int(n) for _, target in loader for n in target["number"]] for _ in range(3)]
    assert all(sorted(order) == WHOLE for order in passes)
    assert len({tuple(order) for order in passes}) == 3
    assert read(data, num_workers=2, seed=1) == passes[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_kind_of_loader_reads_it_as_an_iterable_dataset(shards, workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    theirs = numbers_of(torch.utils.data.DataLoader(stream(shards), 4, num_workers=workers))
    assert read(stream(shards), DataLoader, num_workers=workers) == theirs
    assert sorted(theirs) == WHOLE


@pytest.mark.parametrize(("workers", "shuffle"), [(0, True), (2, False)])
def test_it_resumes_at_the_sample(shards, workers, shuffle):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def make():
        random.seed(7)  # without workers, samples draw from it
        data = stream(shards, images.RandomResizedCrop((12, 16)), shuffle=shuffle)
        return DataLoader(data, 3, num_workers=workers, generator=torch.Generator().manual_seed(7))

    def shown(batches):
        return [(image.numpy().tobytes(), target["number"].tolist()) for image, target in batches]

    whole, taken = shown(make()), iter(loader := make())
    for count in range(1, len(whole)):
        assert shown([next(taken)]) == whole[count - 1 : count]
        if count % 3 == 0:
            continue
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        assert shown(resumed) == whole[count:]


@pytest.mark.parametrize("other", [{"world_size": 3, "rank": 1}, {"world_size": 2, "rank": 0}])
def test_the_state_of_another_division_is_refused(shards, other):
    state = iter(stream(shards, world_size=2, rank=1)).state_dict()
    says = rf"rank 1 of 2, 5 shards; this is worker 0 of 1, rank {other.get('rank', 0)} of"
    with pytest.raises(ValueError, match=says):
        iter(stream(shards, **other)).load_state_dict(state)


def test_torchs_persistent_workers_take_another_order_in_each_pass(shards):
    torch = pytest.importorskip("torch")
    pytest.importorskip("slipring.torch")  # from then on torch's loader accepts a TarStream
    data = stream(shards, FIT, shuffle=True)
    loader = torch.utils.data.DataLoader(data, 4, num_workers=2, persistent_workers=True)
    passes = [[int(n) for _, target in loader for n in target["number"]] for _ in range(3)]
    assert all(sorted(order) == WHOLE for order in passes)
    assert len({tuple(order) for order in passes}) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_cannot_be_read_is_reported_once_and_the_next_comes_after_it(tmp_path, workers):
    paths = [shard(tmp_path / f"{k}.tar", files(3, 10 * k)) for k in range(4)]
    data = stream(paths)
    paths[1].unlink()
    paths[2].write_text("no archive" * 1000)
    with slipring.Loader(data, None, num_workers=workers) as loader:
        it, got = iter(loader), []
        for error in (FileNotFoundError, ValueError):
            with pytest.raises(error, match=r"\.tar"):
                got.extend(int(target["number"]) for _, target in it)
        got.extend(int(target["number"]) for _, target in it)
    assert got == [0, 1, 2, 30, 31, 32]


class OutOfTime(TimeoutError):
    """The exception that a signal handler raises."""


def test_a_handlers_exception_while_an_image_is_read_loses_no_sample(shards):
    def raises(number, frame):
        raise OutOfTime

    data = stream(shards[:1], on_error="skip")
    read, came = data._samples.read, []

    def interrupted(index):
        if not came:
            came.append(index)
            signal.raise_signal(signal.SIGUSR1)
        return read(index)

    data._samples.read = interrupted
    with handling(raises):
        it = iter(data)
        with pytest.raises(OutOfTime):
            next(it)
        assert [target["number"] for _, target in it] == numbers(0)


def test_a_bad_image_is_named_and_the_next_comes_after_it(tmp_path):
    content = [(f"{n}.jpg", encoded(pixels(8, 8)) if n != 1 else b"\xff\xd8\xff\xe0") for n in range(3)]
    path = shard(tmp_path / "bad.tar", content)
    it = iter(images.TarStream(path, FIT, target=None))
    assert next(it)[1] == "0"
    with pytest.raises(ImageError, match=r"1 in .*bad\.tar"):
        next(it)
    assert next(it)[1] == "2"
    skipping = images.TarStream(path, FIT, target=None, on_error="skip")
    assert [name for _, name in skipping] == ["0", "2"]
    with slipring.Loader(skipping, 2, num_workers=1) as loader:
        assert [list(names) for _, names in loader] == [["0", "2"]]
        assert loader.stats().skipped_samples == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"world_size": 6}, "5 shards are too few for 6 ranks"),
        ({"world_size": 2, "rank": 2}, "rank must be from 0 to 1"),
        ({"target": "txt"}, "has no target"),
    ],
)
def test_impossible_arguments_are_refused_at_construction(shards, options, says):
    with pytest.raises(ValueError, match=says):
        images.TarStream(shards, FIT, **{"target": "json", **options})


def ranks(shards, n, seed=7, workers=0, **options):
    """Return the loaders of n ranks; `seed` seeds torch's workers."""
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    crop = images.RandomResizedCrop((12, 16))
    return [
        DataLoader(
            stream(shards, crop, rank=rank, world_size=n, **options),
            3,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed + rank),
        )
        for rank in range(n)
    ]


def taken_of(loader, taken=None):
    """Return [number, the crop's bytes] of each sample of so many batches, and the state after them."""
    found = []
    for crops, target in itertools.islice(loader, taken):
        found += [(n, crop.tobytes()) for n, crop in zip(target["number"].tolist(), crops.numpy(), strict=True)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return found, state


@pytest.mark.parametrize(
    ("taken", "before", "m", "behind", "shuffle"),
    [((3,), 2, 3, 0, True), ((3, 5), 0, 1, 2, False), ((2, 0, 9), 0, 5, 0, True), ((5, 5), 1, 2, 0, False)],
)
def test_other_ranks_read_the_unread_samples_and_draw_the_same_crops(shards, taken, before, m, behind, shuffle):
    n = len(taken)
    whole = dict(
        sample for loader in ranks(shards, n, workers=before, shuffle=shuffle) for sample in taken_of(loader)[0]
    )
    begun = ranks(shards, n, workers=before, shuffle=shuffle)
    parts = [taken_of(loader, count) for loader, count in zip(begun, taken, strict=True)]
    seen = [sample for found, _ in parts for sample in found]
    resumed = ranks(shards, m, seed=99, workers=behind, shuffle=shuffle)
    rest = []
    for loader in resumed:
        loader.load_state_dict([state for _, state in parts])
        rest += taken_of(loader)[0]
    assert sorted(number for number, _ in seen + rest) == WHOLE
    silent = {100 * k + i for k, size in enumerate(SIZES) for i in range(size) if not taken[k % n]}
    if before:
        assert all(whole[number] == crop for number, crop in seen)
        # (A rank without a delivered batch has no draws in its state.)
        assert all(whole[number] == crop for number, crop in rest if number not in silent)
    again = [sample for loader in resumed for sample in taken_of(loader)[0]]
    assert sorted(number for number, _ in again) == WHOLE  # the next epoch


def test_a_divided_epoch_can_be_divided_again(shards):
    seen, states = [], []
    for n, taken in ((2, (2, 2)), (3, (1, 0, 1)), (3, (0, 0, 0)), (1, (2,)), (2, (None, None))):
        parts = []
        for loader, count in zip(ranks(shards, n, shuffle=True), taken, strict=True):
            if states:
                loader.load_state_dict(states)
            parts.append(taken_of(loader, count))
        seen += [number for found, _ in parts for number, _ in found]
        states = [state for _, state in parts]
    assert sorted(seen) == WHOLE
    assert all(state["finished"] for state in states)


def test_states_of_other_shards_are_refused(shards):
    states = [taken_of(loader, 1)[1] for loader in ranks(shards, 2)]
    (other,) = ranks(shards[:4], 1)
    with pytest.raises(ValueError, match="of rank 0's worker 0 is of 5 shards, divided among 2 ranks; here are 4 sh"):
        other.load_state_dict(states)


@pytest.mark.parametrize("shuffle", [False, True])
def test_states_of_another_shuffle_are_refused(shards, shuffle):
    data, other = (stream(shards, shuffle=how) for how in (shuffle, not shuffle))
    samples = iter(data)
    next(samples)
    state = samples.state_dict()
    with pytest.raises(ValueError, match=f"state is of shuffle={shuffle}, this is shuffle={not shuffle}"):
        iter(other).load_state_dict(state)
    with pytest.raises(ValueError, match=f"Resume with shuffle={shuffle}"):
        other.rest_of([[{"iterator": state}]], 2)


def test_one_ranks_state_is_refused_by_others(shards):
    (_, state), _ = [taken_of(loader, 1) for loader in ranks(shards, 2)]
    for n, rank in ((3, 0), (2, 1)):
        with pytest.raises(ValueError, match=f"rank 0 of 2, by .*; here is rank {rank} of {n}.*list of all ranks"):
            ranks(shards, n)[rank].load_state_dict(state)

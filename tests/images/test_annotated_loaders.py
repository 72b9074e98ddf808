"""Samples with several parts in loaders: the same bytes in any worker, after a resume and after faults."""

import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

from slipring import Loader, WorkerError, Workers, images
from tests.images.scenes import PARTS, scene
from tests.support.options import grouped
from tests.support.pictures import encoded

STEPS = [
    images.CopyPaste(p=0.3), images.Mosaic(48, p=0.5), images.RandomRotation(20), images.ColorJitter(0.4, hue=0.1),
    images.RandomHorizontalFlip(), images.RandomCrop(40, pad_if_needed=True),
    images.SampleMixUp(p=0.4),
]  # fmt: skip
# By name: the steps, and how the samples become a batch. Only the first batch is one array from the beginning.
KINDS = {
    "one size": (STEPS, {}),
    "padded": (STEPS[:5], {"multiple_of": 16}),
    "lists": (STEPS[:5], {"batch": "list"}),
    "float32": (STEPS, {"dtype": "float32", "layout": "NCHW", "mean": [0.4] * 3, "std": [0.2] * 3}),
}
WAYS = {
    "one worker": {"num_workers": 1},
    "three workers": {"num_workers": 3},
    "threads": {"num_workers": 2, "start_method": "thread"},
    "shared batches": {"num_workers": 2, "chunk_size": 2},
    "threads with shared batches": {"num_workers": 2, "start_method": "thread", "chunk_size": 1},
    "spawn": {"num_workers": 2, "start_method": "spawn"},
}


class Scenes:
    """Scenes, whose images are files in memory."""

    def __init__(self, count=13):
        self.samples = [scene(n) for n in range(count)]
        for n, sample in enumerate(self.samples):
            sample["image"] = sample["right"] = encoded(np.roll(sample["image"], n, 1) + np.uint8(n), "PNG")

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def annotated(kind="one size", **options):
    steps, its = KINDS[kind]
    return images.Annotated(Scenes(), steps, **PARTS, **its, **options)


def copied(value):
    """Return a copy of a batch as arrays and lists of arrays."""
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else np.array(value)


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one.dtype == other.dtype and np.array_equal(one, other)


def batches(data, **options):
    options = {"seed": 3, "shuffle": True, **options}
    with Loader(data, 5, **grouped(**options)) as loader:
        return [copied(batch) for batch in loader]


@pytest.fixture(scope="module")
def wanted():
    """Return the batches of each kind, without workers."""
    return {(kind, rng): batches(annotated(kind), rng=rng) for kind in KINDS for rng in ("batch", "sample")}


def check(wanted, found, way=None):
    assert len(wanted) == len(found) == 3
    for one, other in zip(wanted, found):
        assert equal(one, other), way


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_workers_make_the_same_bytes(kind, way, wanted):
    if way == "spawn" and kind != "padded":
        pytest.skip("one kind is enough: it takes a second to start")
    for rng in ("batch", "sample") if way != "spawn" else ("batch",):
        check(wanted[kind, rng], batches(annotated(kind), rng=rng, **WAYS[way]), rng)


def test_the_samples_of_a_batch_differ_and_are_those_of_their_seeds(wanted):
    found = wanted["one size", "batch"][0]
    assert len({image.tobytes() for image in found["image"]}) == 5
    assert not equal(found, wanted["one size", "sample"][0])


@pytest.mark.parametrize("kind", ["one size", "padded"])
def test_a_resumed_loader_continues_with_the_same_bytes(kind, wanted):
    for way in ({}, WAYS["three workers"], WAYS["shared batches"]):
        with Loader(annotated(kind), 5, seed=3, shuffle=True, **grouped(**way)) as loader:
            next(iter(loader))
            state = pickle.loads(pickle.dumps(loader.state_dict()))
        with Loader(annotated(kind), 5, seed=3, shuffle=True, **grouped(**way)) as loader:
            loader.load_state_dict(state)
            rest = [copied(batch) for batch in loader]
        assert len(rest) == 2 and all(map(equal, wanted[kind, "batch"][1:], rest)), way


@pytest.mark.parametrize("kind", KINDS)
def test_a_collate_fn_that_is_the_datasets_own_changes_nothing(kind, wanted):
    for way in ({}, WAYS["three workers"], WAYS["shared batches"]):
        data = annotated(kind)
        check(wanted[kind, "batch"], batches(data, collate_fn=data.collate_samples, **way), way)


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_subset_and_random_split_leave_batches_as_they_are(kind):
    torch = pytest.importorskip("torch")
    data = annotated(kind)
    split, _ = torch.utils.data.random_split(data, [9, 4], torch.Generator().manual_seed(0))
    order = [int(n) for n in split.indices]
    for subset in (split, torch.utils.data.Subset(torch.utils.data.Subset(data, order), range(9))):
        found = batches(subset, shuffle=False, num_workers=1)
        assert [n for batch in found for n in batch["number"]] == order
        for way in WAYS:
            if way != "spawn":
                again = batches(subset, shuffle=False, **WAYS[way])
                assert all(map(equal, found, again)), way


def of_torch(loader):
    """Return a torch loader's batches, their tensors as arrays."""
    import torch

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        assert isinstance(value, torch.Tensor)
        return value.numpy().copy()

    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_slipring_torchs_loader_makes_the_same_batches_of_tensors(kind):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def found(own_collate=False, num_workers=0, **options):
        data = annotated(kind)
        options |= {"collate_fn": data.collate_samples} if own_collate else {}
        options |= {"generator": torch.Generator().manual_seed(2), "rng": "batch", "num_workers": num_workers}
        with DataLoader(data, 5, shuffle=True, **options) as loader:
            return [copied(batch) for batch in loader] if own_collate else of_torch(loader)

    first = found()
    for way in ({"num_workers": 2}, {"num_workers": 2, "workers": Workers(chunk_size=2)}):
        check(first, found(**way), way)
    for workers in (0, 1):
        check(first, found(own_collate=True, num_workers=workers), workers)
    assert set(first[0]) >= set(scene())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["one size", "padded", "lists"])
def test_torchs_own_loader_makes_the_same_batches_with_the_datasets_collate_fn(kind, num_workers):
    torch = pytest.importorskip("torch")
    steps = [images.Resize((50, 60))] if kind == "one size" else [images.Pad((1, 2, 3, 4))]
    data = images.Annotated(Scenes(), steps, **PARTS, **KINDS[kind][1])
    loader = torch.utils.data.DataLoader(data, 5, collate_fn=data.collate_samples, num_workers=num_workers)
    check(batches(data, shuffle=False), [copied(batch) for batch in loader])


@pytest.mark.parametrize("way", ["no worker", "three workers", "threads", "shared batches"])
def test_broken_images_are_skipped_in_all_workers_alike(way, tmp_path):
    samples = []
    for n in range(13):
        path = tmp_path / f"{n}.png"
        path.write_bytes(b"no image" if n in (2, 3, 12) else encoded(scene()["image"] + np.uint8(n), "PNG"))
        samples.append({**scene(n), "image": path})
    parts = {**PARTS, "images": "image"}
    data = images.Annotated(samples, [images.Mosaic(40), images.RandomHorizontalFlip()], **parts, on_error="skip")
    with Loader(data, 5, seed=1, **grouped(**WAYS.get(way, {}))) as loader:
        found = [copied(batch) for batch in loader]
        assert loader.stats().skipped_samples > 3  # those of mosaics, too
    assert [n for batch in found for n in batch["number"]] == [0, 1, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11, 0]
    check(batches(data, seed=1, shuffle=False), found)


@pytest.mark.parametrize("way", ["no worker", "three workers", "threads", "shared batches"])
def test_an_error_in_a_worker_names_the_sample(way):
    scenes = Scenes()
    scenes.samples[7] = {**scenes.samples[7], "boxes": [[5, 5, 5, 9]] * 3}
    data = images.Annotated(scenes, images.RandomHorizontalFlip(), **PARTS)
    with (
        Loader(data, 5, **grouped(**WAYS.get(way, {}))) as loader,
        pytest.raises(ValueError, match="index 7: box 0, from") as caught,
    ):
        list(loader)
    if way != "no worker":
        assert isinstance(caught.value.__cause__, WorkerError) and caught.value.__cause__.index == 7


class Deadly(Scenes):
    """Scenes; the first process that reads the ninth one is killed."""

    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def __getitem__(self, index):
        if index == 8 and self.mark.exists():
            self.mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", ["one size", "padded"])
def test_a_killed_worker_changes_no_byte(kind, wanted, tmp_path):
    mark = Path(tmp_path / "mark")
    for way in ("three workers", "shared batches"):
        mark.touch()
        data = annotated(kind)
        data.dataset = Deadly(mark)
        with Loader(data, 5, seed=3, shuffle=True, **grouped(**WAYS[way], on_death="respawn")) as loader:
            found = [copied(batch) for batch in loader]
        assert not mark.exists()
        check(wanted[kind, "batch"], found, way)


class OwnSubset:
    """A mixin of a Subset that reads in its own way."""

    def __getitems__(self, indices):
        return [self.dataset[self.indices[index]] for index in indices]


def datasets(torch):
    data = annotated()
    utils = torch.utils.data
    own = type("OwnSubset", (OwnSubset, utils.Subset), {})
    return {
        "itself": (data, {}, None),
        "own collate": (data, {"collate_fn": data.collate_samples}, None),
        "Subset": (utils.Subset(data, range(9)), {}, None),
        "random_split": (utils.random_split(data, [9, 4])[0], {}, None),
        "no batches": (annotated("padded"), {"collate_fn": list}, None),
        "not batched": (data, {"batch_size": None}, None),
        "plain": (Scenes(), {"collate_fn": list}, None),
        "plain parts": (utils.ConcatDataset([Scenes(), Scenes()]), {"collate_fn": list}, None),
        "collate_fn": (data, {"collate_fn": list}, "collate_fn=<class 'list'> makes the batches"),
        "collate_fn of a Subset": (
            utils.Subset(data, range(9)), {"collate_fn": list}, "without it, Subset makes them in place",
        ),
        "ConcatDataset": (utils.ConcatDataset([data, Scenes()]), {"collate_fn": list}, "torch's ConcatDataset reads"),
        "Subset of ConcatDataset": (
            utils.Subset(utils.ConcatDataset([data, data]), range(20)), {"collate_fn": list}, "torch's ConcatDataset",
        ),
        "another Subset": (own(data, range(9)), {"collate_fn": list}, "OwnSubset is a class of its own"),
    }  # fmt: skip


NAMES = [
    *("itself", "own collate", "Subset", "random_split", "no batches", "not batched", "plain", "plain parts"),
    *("collate_fn", "collate_fn of a Subset", "ConcatDataset", "Subset of ConcatDataset", "another Subset"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("frontend", ["slipring", "slipring.torch"])
def test_one_line_says_why_samples_are_read_one_by_one(frontend, name, caplog):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    data, options, reason = datasets(torch)[name]
    options = {"batch_size": 3, **options}
    with caplog.at_level("INFO", "slipring"):
        if frontend == "slipring":
            loader = Loader(data, num_workers=2, **options)
        else:
            loader = DataLoader(data, num_workers=2, **options)
        with loader:
            for _ in range(2):
                for _ in zip(range(1), loader):
                    pass
    lines = [line for line in caplog.messages if "one by one" in line]
    if reason is None:
        assert not lines
    else:
        assert len(lines) == 1 and reason in lines[0]

"""Samples with several parts in loaders: the same bytes in any worker, after a resume and after faults."""

import pickle

import numpy as np
import pytest

from slipring import Loader, Workers, images
from tests.images.scenes import PARTS, scene
from tests.support.options import grouped
from tests.support.pictures import encoded
from tests.support.scenes import Death, Once

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
    "no worker": {},
    "three workers": {"num_workers": 3},
    "threads with shared batches": {"num_workers": 2, "start_method": "thread", "chunk_size": 1},
    "shared batches": {"num_workers": 2, "chunk_size": 2},
    "spawn": {"num_workers": 2, "start_method": "spawn"},
}


class Scenes:
    def __init__(self, count=13, on=None):
        self.on = on or {}
        self.samples = [scene(n) for n in range(count)]
        for n, sample in enumerate(self.samples):
            sample["image"] = sample["right"] = encoded(np.roll(sample["image"], n, 1) + np.uint8(n), "PNG")

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        if index in self.on:
            self.on[index]()
        return self.samples[index]


def annotated(kind="one size", **options):
    steps, its = KINDS[kind]
    return images.Annotated(Scenes(), steps, **PARTS, **its, **options)


def copied(value):
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [copied(one) for one in value]
    return value.numpy().copy() if hasattr(value, "numpy") else np.array(value)


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
    return {(kind, rng): batches(annotated(kind), rng=rng) for kind in KINDS for rng in ("batch", "sample")}


def check(wanted, found):
    assert len(found) == 3 and equal(wanted, found)


@pytest.mark.parametrize(
    ("kind", "rng", "way"),
    [
        *[("one size", rng, way) for way in WAYS for rng in ("batch", "sample") if way not in ("no worker", "spawn")],
        ("padded", "batch", "spawn"),
        ("padded", "sample", "shared batches"),
        ("lists", "batch", "threads with shared batches"),
        ("float32", "batch", "three workers"),
    ],
)
def test_all_workers_make_the_same_bytes(kind, rng, way, wanted):
    check(wanted[kind, rng], batches(annotated(kind), rng=rng, **WAYS[way]))
    assert not equal(wanted[kind, "batch"], wanted[kind, "sample"])


@pytest.mark.parametrize(
    ("kind", "rng", "before", "after"),
    [
        ("one size", "sample", "shared batches", "no worker"),
        ("padded", "batch", "no worker", "shared batches"),
        ("float32", "batch", "three workers", "threads with shared batches"),
    ],
)
def test_a_resumed_loader_continues_with_the_same_bytes(kind, rng, before, after, wanted):
    with Loader(annotated(kind), 5, seed=3, shuffle=True, rng=rng, **grouped(**WAYS[before])) as loader:
        next(iter(loader))
        state = pickle.loads(pickle.dumps(loader.state_dict()))
    with Loader(annotated(kind), 5, seed=3, shuffle=True, rng=rng, **grouped(**WAYS[after])) as loader:
        loader.load_state_dict(state)
        assert equal([copied(batch) for batch in loader], wanted[kind, rng][1:])


@pytest.mark.parametrize("way", ["three workers", "shared batches"])
def test_a_killed_worker_changes_no_byte(way, wanted, tmp_path):
    data = annotated("padded")
    data.dataset = Scenes(on={8: Once(tmp_path / "killed", Death("SIGKILL"))})
    check(wanted["padded", "batch"], batches(data, **WAYS[way], on_death="respawn"))
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize(("kind", "way"), [("one size", "no worker"), ("padded", "shared batches")])
def test_a_collate_fn_that_is_the_datasets_own_changes_nothing(kind, way, wanted):
    data = annotated(kind)
    check(wanted[kind, "batch"], batches(data, collate_fn=data.collate_samples, **WAYS[way]))


@pytest.mark.parametrize(("kind", "way"), [("one size", "threads with shared batches"), ("padded", "shared batches")])
def test_torchs_subset_and_random_split_leave_batches_as_they_are(kind, way):
    torch = pytest.importorskip("torch")
    data = annotated(kind)
    split, _ = torch.utils.data.random_split(data, [9, 4], torch.Generator().manual_seed(0))
    order = [int(n) for n in split.indices]
    for subset in (split, torch.utils.data.Subset(torch.utils.data.Subset(data, order), range(9))):
        found = batches(subset, shuffle=False, num_workers=1)
        assert [n for batch in found for n in batch["number"]] == order
        assert equal(found, batches(subset, shuffle=False, **WAYS[way]))


@pytest.mark.parametrize("kind", ["padded", "float32"])
def test_slipring_torchs_loader_makes_the_same_batches_of_tensors(kind):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def found(own_collate=False, num_workers=0, **options):
        data = annotated(kind)
        options |= {"collate_fn": data.collate_samples} if own_collate else {}
        options |= {"generator": torch.Generator().manual_seed(2), "rng": "batch", "num_workers": num_workers}
        with DataLoader(data, 5, shuffle=True, **options) as loader:
            made = list(loader)
            assert own_collate or isinstance(made[0]["number"], torch.Tensor)
            return [copied(batch) for batch in made]

    first = found()
    check(first, found(num_workers=2, workers=Workers(chunk_size=2)))
    check(first, found(own_collate=True, num_workers=1))
    assert set(first[0]) >= set(scene())


@pytest.mark.parametrize(("kind", "num_workers"), [("one size", 2), ("padded", 0)])
def test_torchs_own_loader_makes_the_same_batches_with_the_datasets_collate_fn(kind, num_workers):
    torch = pytest.importorskip("torch")
    steps = [images.Resize((50, 60))] if kind == "one size" else [images.Pad((1, 2, 3, 4))]
    data = images.Annotated(Scenes(), steps, **PARTS, **KINDS[kind][1])
    loader = torch.utils.data.DataLoader(data, 5, collate_fn=data.collate_samples, num_workers=num_workers)
    check(batches(data, shuffle=False), [copied(batch) for batch in loader])


@pytest.mark.parametrize("way", ["no worker", "threads with shared batches", "shared batches"])
def test_broken_images_are_skipped_in_all_workers_alike(way, tmp_path):
    samples = []
    for n in range(13):
        path = tmp_path / f"{n}.png"
        path.write_bytes(b"no image" if n in (2, 3, 12) else encoded(scene()["image"] + np.uint8(n), "PNG"))
        samples.append({**scene(n), "image": path})
    parts = {**PARTS, "images": "image"}
    data = images.Annotated(samples, [images.Mosaic(40), images.RandomHorizontalFlip()], **parts, on_error="skip")
    with Loader(data, 5, seed=1, **grouped(**WAYS[way])) as loader:
        found = [copied(batch) for batch in loader]
        assert loader.stats().skipped_samples > 3  # those of mosaics, too
    assert [n for batch in found for n in batch["number"]] == [0, 1, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11, 0]
    check(batches(data, seed=1, shuffle=False), found)


class OwnSubset:
    def __getitems__(self, indices):
        return [self.dataset[self.indices[index]] for index in indices]


def datasets(torch):
    data = annotated()
    utils = torch.utils.data
    own = type("OwnSubset", (OwnSubset, utils.Subset), {})
    return {
        "itself": (data, {}, None),
        "Subset": (utils.Subset(data, range(9)), {}, None),
        "no batches": (annotated("padded"), {"collate_fn": list}, None),
        "plain parts": (utils.ConcatDataset([Scenes(), Scenes()]), {"collate_fn": list}, None),
        "collate_fn": (data, {"collate_fn": list}, "collate_fn=<class 'list'> makes the batches"),
        "Subset of ConcatDataset": (
            utils.Subset(utils.ConcatDataset([data, data]), range(20)), {"collate_fn": list}, "torch's ConcatDataset",
        ),
        "another Subset": (own(data, range(9)), {"collate_fn": list}, "OwnSubset is a class of its own"),
    }  # fmt: skip


@pytest.mark.parametrize("frontend", ["slipring", "slipring.torch"])
def test_one_line_says_why_samples_are_read_one_by_one(frontend, caplog):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    for name, (data, options, reason) in datasets(torch).items():
        caplog.clear()
        kind = Loader if frontend == "slipring" else DataLoader
        with caplog.at_level("INFO", "slipring"), kind(data, 3, num_workers=1, **options) as loader:
            for _ in range(2):
                next(iter(loader))
        lines = [line for line in caplog.messages if "one by one" in line]
        assert len(lines) == (reason is not None), name
        assert reason is None or reason in lines[0], name

"""Recipes for the size of a batch: the pixels are those of the plain recipe of that size, from every source."""

import importlib.util
import itertools
import re

import numpy as np
import pytest
from PIL import Image

import slipring
from slipring import images
from slipring.images import Sized
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.pictures import encoded, pixels
from tests.support.shards import files, shard

BUCKETS = [(16, 24), (20, 20), (24, 16)]
N = 40
SHAPES = [(20 + 7 * n % 31, 20 + 11 * n % 29) for n in range(N)]
ROWS = [(encoded(pixels(*shape, n), ["JPEG", "PNG"][n % 2]), n) for n, shape in enumerate(SHAPES)]
FIXED = {size: images.CoverCrop(size) for size in BUCKETS}
RANDOM = {
    size: [images.RandomResizedCrop(size), images.ColorJitter(0.4, 0.4, 0.4), images.RandomHorizontalFlip()]
    for size in BUCKETS
}


def sampler(**options):
    return images.SizedBatchSampler(SHAPES, BUCKETS, **{"batch_size": 4, "seed": 3, **options})


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(("height", "width"), [(24, 64), (64, 24), (30, 30), (1, 1), (50, 40), (200, 300)])
def test_cover_crop_scales_and_crops_as_two_steps_do(height, width, random):
    step = images.CoverCrop((height, width), random=random, interpolation="bicubic")
    for seed, (rows, columns) in enumerate([(50, 40), (40, 50), (1, 90), (90, 1), (height, width)]):
        row = [(encoded(pixels(rows, columns), "PNG"), 0)]
        data = images.Bytes(row, step)
        to = data.crop_spec(0, seed).to
        assert to[0] >= height and to[1] >= width and (to[0] == height or to[1] == width)
        assert abs(to[0] * columns - to[1] * rows) <= max(rows, columns)  # the aspect, within half a pixel
        crop = images.RandomCrop((height, width)) if random else images.CenterCrop((height, width))
        plain = images.Bytes(row, [images.Resize(to, "bicubic"), crop])
        made = data.try_sample(0, seed)[0]
        assert made.shape == (height, width, 3) and np.array_equal(made, plain.try_sample(0, seed)[0])


def test_the_place_of_a_random_cover_crop_is_drawn():
    data = images.Bytes(ROWS, images.CoverCrop((10, 40), random=True))
    positions = {data.crop_spec(0, seed).window[0] for seed in range(200)}
    assert positions == set(range(data.crop_spec(0, 0).to[0] - 10 + 1)) and data.is_random
    assert not images.Bytes(ROWS, images.CoverCrop(10)).is_random


@pytest.mark.parametrize("options", [{}, {"dtype": "float32", "layout": "NCHW"}, {"side": 18}], ids=str)
def test_each_image_is_that_of_the_plain_recipe_of_its_size(options):
    data = images.Bytes(ROWS, RANDOM, **options)
    for size in BUCKETS:
        plain = images.Bytes(ROWS, RANDOM[size], **options)
        for index in (0, 7, N - 1, -1):
            made, target = data.try_sample(Sized(index, size), 5)
            assert np.array_equal(made, plain.try_sample(index, 5)[0]) and target == index % N
            assert data.crop_spec(Sized(index, size), 5) == plain.crop_spec(index, 5)
    assert data.is_random and not images.Bytes(ROWS, FIXED).is_random


def same(batch, size, **options):
    """Assert that a batch has the images of FIXED of that size; return their indices."""
    made, targets = (np.asarray(part) for part in batch)
    plain = images.Bytes(ROWS, FIXED[size], **options)
    assert made.shape == (len(targets), *size, 3)
    for image, index in zip(made, targets.tolist()):
        assert np.array_equal(image, plain[index][0])
    return targets.tolist()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2, slow(1), slow(3), slow(4)])
@pytest.mark.parametrize("face", ["slipring", "torch", "torch's own"])
def test_loaders_render_each_batch_to_its_size(face, workers):
    batches = list(sampler())
    data = images.Bytes(ROWS, FIXED)
    if face == "slipring":
        loader = slipring.Loader(data, batch_sampler=sampler(), num_workers=workers)
    elif face == "torch":
        torch = pytest.importorskip("slipring.torch", exc_type=ImportError)
        loader = torch.DataLoader(data, batch_sampler=sampler(), num_workers=workers)
    else:
        torch = pytest.importorskip("torch")
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler(), num_workers=workers)
    assert len(loader) == len(batches)
    for batch, sized in zip(loader, batches, strict=True):
        assert same(batch, sized[0].size) == [index for index, _ in sized]
    assert {sized[0].size for sized in batches} == set(BUCKETS)
    assert sorted(index for sized in batches for index, _ in sized) == list(range(N))


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "chunk_size": 1},
        {"num_workers": 2, "start_method": "thread"},
        {"num_workers": 1, "start_method": "spawn"},
        {"num_workers": 2, "fetch_threads": 2},
    ],
    ids=str,
)
def test_random_crops_are_the_same_from_every_kind_of_worker(options):
    def batches(**options):
        data = images.Bytes(ROWS, RANDOM, batch_transform=images.MixUp(num_classes=N))
        with slipring.Loader(data, batch_sampler=sampler(), seed=1, **grouped(**options)) as loader:
            return [(made.tobytes(), made.shape, labels.tobytes()) for made, labels in loader]

    assert batches(**options) == batches()


def table(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": [data for data, _ in ROWS[:6]], "label": range(6)}), path)
    return path


def test_every_source_knows_sizes(tmp_path):
    path = shard(tmp_path / "0.tar", files(6))
    (tmp_path / "train" / "one").mkdir(parents=True)
    for n in range(6):
        (tmp_path / "train" / "one" / f"{n}.png").write_bytes(ROWS[n][0])
    rows = [{"image": data, "mask": np.zeros(shape, np.uint8)} for (data, _), shape in zip(ROWS[:6], SHAPES)]
    makers = [
        lambda transform, **options: images.Folder(tmp_path / "train", transform, **options),
        lambda transform, **options: images.Tar(path, transform, **options),
        lambda transform: images.Annotated(rows, transform, masks="mask"),
    ]
    if importlib.util.find_spec("pyarrow") is not None:
        written = table(tmp_path / "rows.parquet")
        makers.append(lambda transform: images.Parquet(written, transform))
    batch = [Sized(index, (24, 16)) for index in (3, 0, 5)]
    for make in makers:
        data, plain = make(RANDOM), make(RANDOM[24, 16])
        with (
            slipring.Loader(data, batch_sampler=[batch], seed=1) as loader,
            slipring.Loader(plain, batch_sampler=[[3, 0, 5]], seed=1) as other,
        ):
            (made,), (want,) = loader, other
        pairs = zip(made.values(), want.values()) if isinstance(made, dict) else zip(made, want)
        assert all(np.array_equal(one, two) for one, two in pairs)
        assert "(24, 16)" in repr(data)


@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_a_loader_continues_with_other_ranks_and_workers_with_each_image_once(face):
    if face == "torch":
        make = pytest.importorskip("slipring.torch", exc_type=ImportError).DataLoader
    else:
        make = slipring.Loader
    seen, state = [], None
    for ranks, workers, most in ((2, 2, 2), (3, 0, 1), (2, 1, None)):
        states, counts = [], set()
        for rank in range(ranks):
            sized = sampler(rank=rank, world_size=ranks)
            loader = make(images.Bytes(ROWS, FIXED), batch_sampler=sized, num_workers=workers)
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            taken = [same(batch, batch[0].shape[1:3]) for batch in itertools.islice(batches, most)]
            seen += itertools.chain.from_iterable(taken)
            states.append(loader.state_dict())
            counts.add(len(taken))
            del batches
            if hasattr(loader, "close"):
                loader.close()
        assert len(counts) == 1
        state = states[ranks - 1]
    assert sorted(seen) == list(range(N))


@pytest.mark.parametrize("options", [{"what": "pixels"}, {"side": 18}, {"what": "encoded"}], ids=str)
def test_a_cache_serves_all_sizes(options):
    data = images.Bytes(ROWS, FIXED, cache="8MiB", **options)
    plain = {size: images.Bytes(ROWS, FIXED[size], side=options.get("side")) for size in BUCKETS}
    for size in BUCKETS:
        for index in range(4):
            assert np.array_equal(data[Sized(index, size)][0], plain[size][index][0])
    assert data.cache.stats().entries == 4 and data.cache.stats().hits == 8


def test_an_image_in_place_of_a_bad_one_has_the_size_of_the_batch():
    data = images.Bytes([(b"no image", 0), *ROWS[1:]], FIXED, on_error="skip")
    made, targets = next(iter(slipring.Loader(data, batch_sampler=[[Sized(0, (16, 24)), Sized(2, (16, 24))]])))
    assert made.shape == (2, 16, 24, 3) and targets.tolist() == [1, 2]


def test_map_adds_its_step_to_the_recipe_of_each_size():
    def invert(image):
        return 255 - image

    data = images.Bytes(ROWS, FIXED)
    for size in BUCKETS:
        assert np.array_equal(data.map(invert)[Sized(3, size)][0], 255 - data[Sized(3, size)][0])


def test_squares_may_be_named_by_their_side():
    data = images.Bytes(ROWS, {side: [images.Resize((side, side))] for side in (8, 12)})
    with slipring.Loader(data, batch_sampler=images.SizedBatchSampler(N, [8, 12], batch_size=5, seed=0)) as loader:
        shapes = {made.shape[1:] for made, _ in loader}
    assert shapes == {(8, 8, 3), (12, 12, 3)}


def test_an_image_looks_as_pillow_fits_it():
    image = Image.fromarray(pixels(60, 45))
    made = images.Bytes([(encoded(pixels(60, 45), "PNG"), 0)], images.CoverCrop((30, 30)))[0][0]
    middle = image.resize((30, 40), Image.Resampling.BILINEAR).crop((0, 5, 30, 35))
    assert np.abs(np.asarray(middle).astype(int) - made).max() <= 1


@pytest.mark.parametrize(
    ("transform", "index", "error", "text"),
    [
        (images.CenterCrop(8), Sized(0, (16, 24)), ValueError, "transform=CenterCrop((8, 8)) does not depend"),
        (None, Sized(0, 8), ValueError, "transform=None does not depend on it: give a dict"),
        (np.copy, Sized(0, 8), ValueError, "does not depend on it: give a dict"),
        (FIXED, 0, ValueError, "the index 0 has no size, and transform has those of (16, 24), (20, 20), (24, 16): "),
        (FIXED, Sized(0, (8, 8)), ValueError, "asks for the size (8, 8), and transform has only (16, 24), (20, 20), "),
        (FIXED, Sized(0, 16), ValueError, "asks for the size 16, and transform has only"),
        (FIXED, Sized(N, (16, 24)), IndexError, f"index {N} is out of range"),
    ],
)
def test_an_index_whose_size_the_recipe_does_not_know_is_refused(transform, index, error, text):
    data = images.Bytes(ROWS, transform)
    with pytest.raises(error, match=re.escape(text)):
        data[index]
    if data.fetch_into is not None:
        loader = slipring.Loader(data, batch_sampler=[[index]])
        with pytest.raises(error, match=re.escape(text)):
            next(iter(loader))


@pytest.mark.parametrize(
    ("transform", "error", "text"),
    [
        ({}, ValueError, "transform must have the transforms of at least one size, not an empty dict"),
        ({(0, 8): []}, ValueError, "each size in transform must be a number of pixels from 1 to"),
        ({"large": []}, ValueError, "each size in transform must be a number of pixels from 1 to"),
        ({(8, 8): None}, ValueError, "transform[(8, 8)] leaves images of different sizes, which fit no batch"),
        ({(8, 8): images.Resize(8)}, ValueError, "transform[(8, 8)] leaves images of different sizes"),
        ({(8, 9): images.CoverCrop((9, 8))}, ValueError, "transform[(8, 9)] makes the size (9, 8): it must"),
        ({8: images.CenterCrop(9)}, ValueError, "transform[8] makes the size (9, 9): it must be the same"),
        ({8: images.MixUp()}, TypeError, "transform must not have MixUp"),
    ],
)
def test_a_bad_dict_of_transforms_is_refused(transform, error, text):
    with pytest.raises(error, match=re.escape(text)):
        images.Bytes(ROWS, transform)


def test_what_has_no_size_is_refused(tmp_path):
    with pytest.raises(TypeError, match="a stream has no sampler"):
        images.TarStream(shard(tmp_path / "0.tar", files(6)), FIXED)
    with pytest.raises(ValueError, match="give a dataset transform"):
        images.Bytes(ROWS, FIXED).step_times()
    mixed = slipring.Loader(images.Bytes(ROWS, FIXED), batch_sampler=[[Sized(0, (16, 24)), Sized(1, (20, 20))]])
    with pytest.raises(ValueError, match=r"a batch has the indices Sized.* and Sized.*: its images must have one size"):
        next(iter(mixed))

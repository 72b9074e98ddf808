"""Nonsense for every argument of every public name: refused at once; the error names argument and value."""

import inspect
import io
import tarfile
from collections.abc import Iterable
from types import UnionType
from typing import Literal, get_args, get_origin

import numpy as np
import pytest

import slipring
from slipring.errors import shown
from slipring.options import LoaderOptions, Memory, StreamOptions, TorchOptions, Workers
from slipring.streams import ShardStream, Stream
from tests.support.inside import Group, function, group_rules, instance, integer, rules, seconds, worker_count

NAN, HUGE = float("nan"), 10**400


class Unshowable:
    def __repr__(self):
        raise ZeroDivisionError


NUMBERS = [1.5, NAN, float("inf"), 1j, np.float64(2), np.array([1, 2])]
OTHERS = ["3", b"3", [], {}, object(), np.True_, Unshowable()]
BLANK = [3, NAN, "x", object(), np.int64(3), True, Unshowable()]
# Kind of argument -> values that must be refused. A kind that ends in "?" allows None.
NONSENSE = {
    "count": [True, 0, -1, -HUGE, *NUMBERS, *OTHERS],
    "natural": [True, -1, -HUGE, *NUMBERS, *OTHERS],
    "bounded": [True, -1, HUGE, np.int64(-1), *NUMBERS, *OTHERS],
    "integer": [True, *NUMBERS, *OTHERS],
    "seconds": [True, -1, NAN, float("inf"), HUGE, 1j, np.float64("nan"), np.array([1, 2]), *OTHERS],
    "at most forever": [True, NAN, 1j, np.array([1, 2]), *OTHERS],
    "flag": [0, 1, -1, *NUMBERS, *OTHERS],
    "word": [0, True, *NUMBERS, "\ud800", *OTHERS],
    "callable": [0, True, *NUMBERS, *OTHERS],
    "iterable": [3, NAN, True, object(), np.int64(3), np.array(2), int, Unshowable()],
    "dataset": [3, NAN, True, object(), np.int64(3), np.array(2), int, Unshowable()],
    "names": [3, NAN, True, "x", b"x", [], [1], [None], ["x", "x"], object(), np.int64(3), Unshowable()],
    "words": [3, NAN, True, b"x", [1], [None], object(), np.int64(3), Unshowable()],
    "path": [3, NAN, True, [3], "a\0b", "\ud800", object(), np.int64(3), np.array([1, 2]), Unshowable()],
    "size": [True, 0, -1, HUGE, *NUMBERS, "much", *OTHERS[1:]],
    "mapping": [3, NAN, True, "x", [1], object(), np.int64(3), Unshowable()],
    "fill": [3, NAN, True, "x", [1], {1: 0}, {"x": None}, object(), np.int64(3), Unshowable()],
    "text": [3, NAN, True, [], {}, object(), np.int64(3), Unshowable()],
    "three numbers": ["x", NAN, [1, 2], [NAN] * 3, {}, object(), HUGE, Unshowable()],
    "two numbers": [
        "x",
        NAN,
        [1, 2, 3],
        [NAN] * 2,
        (0, 1),
        (2, 1),
        3,
        {},
        object(),
        (HUGE, HUGE),
        Unshowable(),
    ],
    "probability": [True, -1, 2, HUGE, *NUMBERS[1:4], *OTHERS],
    "pixels": [True, 0, -1, HUGE, *NUMBERS, (1, 2, 3), (0, 0), (1.5, 2), *OTHERS],
    "above 1": [True, 0, -1, 0.5, HUGE, *NUMBERS[1:4], *OTHERS],
    "device": ["nonsense", -1, HUGE, NAN, [], {}, object(), Unshowable()],
    "weights": ["x", NAN, [1], [1] * 20 + ["x"], [-1] * 20, [NAN] * 20, {}, object(), Unshowable()],
    "bytes-like": [3, NAN, True, "x", [], object(), np.int64(3), Unshowable()],
    "object": BLANK,
    "source": [3, NAN, True, object(), np.int64(3), np.array(2), Unshowable()],
    "how many": [True, -1, *NUMBERS[:5], {}, object(), np.True_, Unshowable()],
    "shape": [True, -1, HUGE, 1.5, NAN, "x", object()],
    "text or bytes": [3, NAN, True, [], object(), np.arange(3), Unshowable()],
}
# For num_workers: an int, "auto" or (least, most).
NONSENSE["workers"] = [*NONSENSE["bounded"], (2, 1), (0, None), (1, 2, 3), (1.5, None), (None, HUGE)]
NONSENSE["group"] = [None, 3, "x", {}, object(), slipring.Loader, Unshowable()]
NO_NONE = {"callable", "words", "mapping", "path", "flag"}  # some of these allow None


BY_CHECK = {worker_count: "workers", seconds: "seconds", function: "callable?", instance: "group"}
BY_TYPE = {bool: "flag", Literal: "word", Iterable: "iterable", UnionType: "word"}


def kind_of(declared, rule):
    """Return the kind of an option's values, as slipring/options.py declares it; None if it is not known."""
    check, given = getattr(rule.check, "func", rule.check), getattr(rule.check, "keywords", {})
    if check is integer:
        kind = {None: "integer", 0: "natural"}.get(given.get("least"), "count")
        return kind + "?" * given.get("optional", False)
    optional = type(None) in get_args(declared)
    one = get_args(declared)[0] if optional else declared
    kind = BY_CHECK.get(check) or BY_TYPE.get(get_origin(one) or one)
    return kind and kind.removesuffix("?") + "?" * (optional or kind[-1] == "?")


def kinds_of(*declared):
    """Return {option: kind} of the options that a TypedDict or a `Group` declares."""
    found = {}
    for each in declared:
        options = group_rules(each) if issubclass(each, Group) else rules(each)
        found |= {name: kind_of(*option) for name, option in options.items()}
    return found


LOADER = {"batch_size": "count?", "collate_fn": "callable?", **kinds_of(LoaderOptions)}
OF_TORCH = (
    "dataset", "batch_size", "shuffle", "num_workers", "pin_memory", "drop_last", "timeout", "generator",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip
TORCH = {
    **{name: kind for name, kind in LOADER.items() if name not in (*OF_TORCH, "seed")},
    **kinds_of(TorchOptions), "device": "device?", "num_workers": None,
}  # fmt: skip
STREAM = {
    "batches": "source", "batch_size": "count", "columns": "names?", "drop_last": "flag?",
    "shuffle_buffer": "natural", "fill_null": "fill?", "null_mask": "names?",
    "skip_none": "flag?",
}  # fmt: skip
RANKED = {"rank": "natural", "world_size": "count"}
IMAGES = {
    "transform": "object?", "layout": "word", "dtype": "word", "mean": "three numbers?", "std": "three numbers?",
    "reducing_gap": "above 1?", "exif": "flag?", "truncated": "word", "max_pixels": "count", "on_error": "word",
    "side": "count?", "cache": "size?", "what": "word", "target_transform": "callable?",
}  # fmt: skip


class Face:
    """A public constructor or function: its required arguments, and the kinds of all arguments."""

    def __init__(self, module, name, base, kinds):
        self.module, self.name, self.base, self.kinds = module, name, base, kinds

    def __repr__(self):
        return f"{self.module}.{self.name}".removeprefix("slipring.")

    def given(self, folder):
        """Return (the callable, the arguments that it needs)."""
        called = getattr(pytest.importorskip(self.module), self.name)
        return called, self.base(folder) if callable(self.base) else self.base


def blocks(*_):
    return [{"x": np.arange(6)}]


DATA = {"dataset": [1, 2, 3] * 10}
FACES = [
    Face("slipring", "Loader", DATA, {"dataset": "dataset", **LOADER}),
    Face("slipring", "Workers", {}, kinds_of(Workers)),
    Face("slipring", "Memory", {}, kinds_of(Memory)),
    Face("slipring.torch", "Device", {"device": "cpu"}, {
        "device": None, "preload": "bounded?", "non_blocking": "flag?", "memory_format": None,
        "transform": "callable?",
    }),
    Face("slipring.torch", "DataLoader", DATA, TORCH),
    Face("slipring", "BatchSampler", {"indices": 20}, {
        "indices": "how many", "batch_size": "count", "shuffle": "flag?", "drop_last": "flag?", "seed": "integer?",
        "weights": "weights?", "num_samples": "count?", **RANKED,
    }),
    Face("slipring", "Queue", {"maxsize": 3}, {
        "maxsize": "count", "slot_bytes": "count?", "copy": "word", "max_processes": "count", "backing": "word",
    }),
    Face("slipring", "StringList", {}, {"strings": "iterable"}),
    Face("slipring", "empty", {"shape": 3}, {"shape": "shape", "dtype": None}),
    Face("slipring", "stream", {"batches": blocks, "batch_size": 4}, {
        **kinds_of(StreamOptions), **STREAM,
    }),
    Face("slipring.streams", "Stream", {"batches": blocks, "batch_size": 4}, STREAM),
    Face("slipring.streams", "ShardStream", {"shards": [0, 1], "read": blocks, "batch_size": 4}, {
        "shards": "iterable", "read": "callable", **{k: v for k, v in STREAM.items() if k in (
            "batch_size", "columns", "drop_last", "fill_null", "null_mask", "skip_none")}, "shuffle": "flag?", **RANKED,
    }),
    Face("slipring.images", "Folder", lambda at: {"root": at / "classes", "dtype": "float32"}, {
        "root": "path", "extensions": "words", "is_valid_file": "callable?", "allow_empty": "flag?",
        "storage": "object?", **IMAGES,
    }),
    Face("slipring.images", "Tar", lambda at: {"shards": at / "a.tar", "dtype": "float32"}, {
        "shards": "path", "image": "text", "target": "text?", "index": "word", "storage": "object?", **IMAGES,
    }),
    Face("slipring.images", "TarStream", lambda at: {"shards": at / "a.tar", "dtype": "float32"}, {
        "shards": "path", "image": "text", "target": "text?", "index": "word", "storage": "object?",
        "shuffle": "flag?", **RANKED, **IMAGES, "cache": None,
    }),
    Face("slipring.images", "Parquet", lambda at: {"paths": at / "a.parquet", "dtype": "float32"}, {
        "paths": "path", "image": None, "target": None, "storage": "object?", **IMAGES,
    }),
    Face("slipring.images", "Bytes", {"dataset": [(b"", 1)], "dtype": "float32"}, {
        "dataset": "dataset", "image": None, "target": None, "fingerprint": None, **IMAGES,
    }),
    Face("slipring.images", "RandomResizedCrop", {"size": 8}, {
        "size": "pixels", "scale": "two numbers", "ratio": "two numbers", "flip": "probability",
        "interpolation": "word",
    }),
    Face("slipring.images", "Resize", {"size": 1}, {"size": "pixels", "max_size": "count?", "interpolation": "word"}),
    Face("slipring.images", "CenterCrop", {"size": 8}, {"size": "pixels"}),
    Face("slipring.images", "RandomHorizontalFlip", {}, {"p": "probability"}),
    Face("slipring.images", "decode_into", {"data": b"x", "out": np.zeros((2, 2, 3), np.uint8)}, {
        "data": "bytes-like", "out": "object", "box": None, "flip": "flag?", "exif": "flag?",
        "reducing_gap": "above 1?", "interpolation": "word", "truncated": "word", "max_pixels": "count",
    }),
    Face("slipring.images", "decode", {"data": b"P6 2 1 255\n123456"}, {
        "data": "bytes-like", "channels": "count", "mode": "word?", "exif": "flag?", "truncated": "word",
        "max_pixels": "count",
    }),
    Face("slipring.images", "size", {"data": b"x"}, {"data": "bytes-like", "exif": "flag?"}),
    Face("slipring.arrow", "TableDataset", lambda at: {"paths": at / "a.parquet"}, {
        "paths": "path", "columns": "names?", "decode": "callable?", "decode_batch": "callable?", "returns": "word",
        "cached_groups": "count", "storage": "object?", "fill_null": "fill?", "null_mask": "names?",
    }),
    Face("slipring", "Storage", {}, {
        "filesystem": None, "storage_options": "mapping?", "attempts": "count", "timeout": "seconds",
        "attempt_timeout": "seconds", "disk_cache": "path", "disk_cache_bytes": "size",
    }),
    Face("slipring", "Cache", {"budget": "1MiB"}, {"budget": "size", "name": None, "backing": "word"}),
    Face("slipring", "cached", {"dataset": [1, 2], "cache": "1MiB"}, {
        "dataset": "dataset", "cache": "size", "fingerprint": "text?", "copy": "flag?",
    }),
    Face("slipring", "progress", {"loader": [1], "file": io.StringIO()}, {
        "loader": "iterable", "total": "natural?", "description": "text?", "file": "object?",
    }),
    Face("slipring", "replay", {"loader": [1]}, {"loader": "iterable", "n": "count?"}),
    Face("slipring.torch", "RingCollate", {}, {
        "collate_fn": "callable?", "slots": "count", "slot_bytes": "count?",
    }),
    Face("slipring.adapters.di_engine", "AsyncDataLoader", {
        "data_source": lambda n: [{}] * n, "batch_size": 4, "device": "cpu",
    }, {
        "data_source": "source", "batch_size": "count", "device": "device", "chunk_size": "integer?",
        "collate_fn": "callable?", "num_workers": "natural",
    }),
    Face("slipring.adapters.megengine", "DataLoader", DATA, {
        "dataset": None, "sampler": None, "transform": "object?", "collator": "object?",
        "num_workers": "natural", "timeout": "seconds", "preload": "flag?", "parallel_stream": "flag?",
    }),
    *[Face("slipring.adapters.megengine", name, DATA, {
        "dataset": "dataset", "batch_size": "count", "drop_last": "flag",
        "world_size": "count?", "rank": "natural?", **more,
    }) for name, more in (
        ("SequentialSampler", {"indices": None}),
        ("RandomSampler", {"indices": None, "seed": "natural?"}),
        ("ReplacementSampler", {"num_samples": "count?", "weights": "weights?", "seed": "natural?"}),
    )],
    Face("slipring.adapters.megengine", "StreamSampler", {}, {"batch_size": "count"}),
    Face("slipring.adapters.megengine", "Infinite", {}, {"sampler": "iterable"}),
    Face("slipring.adapters.megengine", "ConcatDataset", {}, {"datasets": "iterable"}),
    Face("slipring.adapters.megengine", "Compose", {}, {
        "transforms": "iterable", "batch_compose": "flag?", "shuffle_indices": "iterable?", "order": None,
    }),
    Face("slipring.adapters.paddle", "DataLoader", DATA, {
        "dataset": "dataset", "feed_list": "object?", "places": None, "return_list": "flag?",
        "batch_sampler": "iterable?", "batch_size": "count?", "shuffle": "flag?", "drop_last": "flag?",
        "collate_fn": "callable?", "num_workers": "natural", "use_buffer_reader": "flag?",
        "prefetch_factor": "count", "use_shared_memory": "flag?", "timeout": "seconds",
        "worker_init_fn": "callable?", "persistent_workers": "flag?",
    }),
    Face("slipring.adapters.paddle", "BatchSampler", DATA, {
        "dataset": None, "sampler": None, "shuffle": "flag?", "batch_size": "count", "drop_last": "flag?",
    }),
    Face("slipring.adapters.paddle", "set_autotune_config", {"use_autotune": False}, {
        "use_autotune": "flag?", "tuning_steps": "count",
    }),
    Face("slipring.adapters.webdataset", "MultiLoader", {"dataset": [1], "workers": 0}, {
        "dataset": "iterable", "workers": "bounded", "verbose": "flag?", "nokill": "flag?", "prefix": None,
        "worker_options": None,
    }),
]  # fmt: skip
EVERY = [(face, name, kind) for face in FACES for name, kind in face.kinds.items() if kind]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A class folder, a tar shard and a table, with images that are not decoded."""
    at = tmp_path_factory.mktemp("arguments")
    (at / "classes" / "a").mkdir(parents=True)
    (at / "classes" / "a" / "0.png").write_bytes(b"x")
    with tarfile.open(at / "a.tar", "w") as shard:
        for name in ("0.png", "0.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            shard.addfile(member, io.BytesIO(b"1"))
    try:
        from pyarrow import parquet, table
    except ImportError:
        return at
    parquet.write_table(table({"image": [b"x"], "label": [0]}), at / "a.parquet")
    return at


def refusal_of(called, arguments, name):
    """Return the fault of the error that this raises, or None."""
    value = arguments[name]
    try:
        made = called(**arguments)
    except (TypeError, ValueError) as error:
        text = str(error)
        says = shown(value)[:8] in text or type(value).__name__ in text or "Unshowable" in text
        if name in text and (says or hasattr(value, "__iter__")):
            return None
        return f"{name}={shown(value)} is refused by {type(error).__name__}: {text}"
    except Exception as error:
        return f"{name}={shown(value)} raises {type(error).__name__}: {error}"
    end(made)
    return f"{name}={shown(value)} is taken"


def end(made):
    for method in ("close", "kill"):
        if hasattr(made, method):
            getattr(made, method)()
            return


@pytest.mark.parametrize(("face", "name", "kind"), EVERY, ids=lambda part: str(part))
def test_nonsense_is_refused_at_once_by_an_error_that_names_argument_and_value(folder, face, name, kind):
    called, base = face.given(folder)
    wrong = [*NONSENSE[kind.removesuffix("?")]]
    if kind[-1] != "?" and kind not in NO_NONE:
        wrong.append(None)
    faults = [refusal_of(called, {**base, name: value}, name) for value in wrong]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("face", FACES, ids=str)
def test_every_argument_has_a_kind(folder, face):
    called, _ = face.given(folder)
    wanted = {
        name
        for name, parameter in inspect.signature(called).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    if repr(face) == "torch.DataLoader":  # torch checks its own arguments
        wanted -= set(OF_TORCH)
    assert wanted <= set(face.kinds)


INTEGERS = [
    (face, name)
    for face, name, kind in EVERY
    if kind.removesuffix("?") in ("count", "natural", "bounded", "integer", "how many") and face.name != "decode_into"
]


@pytest.mark.parametrize(("face", "name"), INTEGERS, ids=lambda part: str(part))
@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array])
def test_numpys_integers_are_taken_as_pythons(folder, face, name, kind):
    called, base = face.given(folder)
    parameter = inspect.signature(called).parameters.get(name)
    number = base.get(name, None if parameter is None else parameter.default)
    if not isinstance(number, int) or number > 255:
        number = 0 if name == "rank" else 2
    end(called(**{**base, name: kind(number)}))


def test_small_integers_of_numpy_do_not_overflow():
    kind = np.uint8
    sampler = slipring.BatchSampler(1000, kind(200), world_size=kind(2), rank=kind(1))
    assert list(sampler) == list(slipring.BatchSampler(1000, 200, world_size=2, rank=1))
    assert [len(batch["x"]) for batch in Stream([{"x": np.arange(600)}], kind(250))] == [250, 250, 100]
    shards = ShardStream(range(3), lambda _: [{"x": np.arange(100)}], kind(250), world_size=kind(1))
    assert [len(batch["x"]) for batch in shards] == [250, 50]

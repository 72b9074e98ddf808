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
from slipring.options import FlowOptions, LoaderOptions, Memory, TorchOptions, Workers
from slipring.streams import ShardStream, Stream
from tests.support.datasets import Unshowable
from tests.support.inside import function, instance, integer, rules, seconds, worker_count

NAN, HUGE = float("nan"), 10**400

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
        "x", NAN, [1, 2, 3], [NAN] * 2, (0, 1), (2, 1), 3, {}, object(), (HUGE, HUGE), Unshowable(),
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
}  # fmt: skip
# For num_workers: an int, "auto" or (least, most).
NONSENSE["workers"] = [*NONSENSE["bounded"], (2, 1), (0, None), (1, 2, 3), (1.5, None), (None, HUGE)]
NONSENSE["group"] = [None, 3, "x", {}, object(), slipring.Loader, Unshowable()]
INTEGERS = {"count", "natural", "bounded", "integer", "how many"}
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
        options = rules(each)
        found |= {name: kind_of(*option) for name, option in options.items()}
    return found


LOADER = {"batch_size": "count?", "collate_fn": "callable?", **kinds_of(LoaderOptions)}
OF_TORCH = (  # torch checks these
    "dataset", "batch_size", "shuffle", "num_workers", "pin_memory", "drop_last", "timeout", "generator",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip
TORCH = {
    **dict.fromkeys(OF_TORCH),
    **{name: kind for name, kind in LOADER.items() if name not in (*OF_TORCH, "seed")},
    **kinds_of(TorchOptions), "device": "device?", "num_workers": None,
}  # fmt: skip
# Kind -> arguments that are of this kind unless a `Face` says otherwise. Nobody checks those of the last line.
ARGUMENTS = {
    "count": "attempts batch_size cached_groups channels max_pixels max_processes maxsize prefetch_factor slots "
    "tuning_steps world_size",
    "count?": "max_size n num_samples side slot_bytes", "natural": "num_workers rank shuffle_buffer",
    "natural?": "total", "bounded?": "preload", "integer?": "chunk_size seed", "seconds": "attempt_timeout timeout",
    "flag?": "allow_empty batch_compose copy drop_last exif nokill non_blocking parallel_stream persistent_workers "
    "return_list shuffle skip_none use_autotune use_buffer_reader use_shared_memory verbose",
    "word": "backing dtype index interpolation layout on_error returns truncated what grey16", "word?": "mode",
    "callable": "read", "callable?": "collate_fn decode decode_batch is_valid_file target_transform worker_init_fn",
    "object": "out", "object?": "collator feed_list file storage transform", "source": "batches data_source",
    "iterable": "datasets loader strings transforms", "iterable?": "batch_sampler shuffle_indices",
    "dataset": "dataset", "names?": "columns null_mask", "words": "extensions",
    "path": "disk_cache paths root shards", "size": "budget disk_cache_bytes", "size?": "cache",
    "mapping?": "storage_options", "fill?": "fill_null", "text": "image", "text?": "description fingerprint target",
    "two numbers": "ratio scale", "three numbers?": "mean std", "probability": "flip p", "pixels": "size",
    "above 1?": "reducing_gap", "weights?": "weights", "shape": "shape", "bytes-like": "data", "how many": "indices",
    "device": "device",
    None: "box filesystem memory_format name order places prefix sampler worker_options",
}  # fmt: skip
KINDS = {name: kind for kind, names in ARGUMENTS.items() for name in names.split()}
IMAGES = (
    "transform layout dtype mean std reducing_gap exif truncated grey16 max_pixels on_error side cache what "
    "target_transform"
)


class Face:
    """A public constructor or function: its required arguments, and the kinds of arguments that differ from KINDS."""

    def __init__(self, module, name, base, **kinds):
        self.module, self.name, self.base, self.kinds = f"slipring{module}", name, base, kinds

    def __repr__(self):
        return f"{self.module}.{self.name}".removeprefix("slipring.")

    def given(self, folder):
        """Return (the callable, the arguments that it needs, the kinds of all arguments)."""
        called = getattr(pytest.importorskip(self.module), self.name)
        parameters = inspect.signature(called).parameters.values()
        names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        if "options" in inspect.signature(called).parameters:  # those of all datasets of images
            names += IMAGES.split()
        kinds = {name: self.kinds[name] if name in self.kinds else KINDS[name] for name in names}
        return called, self.base(folder) if callable(self.base) else self.base, kinds


def blocks(*_):
    return [{"x": np.arange(6)}]


DATA = {"dataset": [1, 2, 3] * 10}
FLOATS = {"dtype": "float32"}
BLOCKS = {"batches": blocks, "batch_size": 4}
FOR_MEGENGINE = {"drop_last": "flag", "world_size": "count?", "rank": "natural?", "seed": "natural?"}
FACES = [
    Face("", "Loader", DATA, **LOADER),
    Face("", "Workers", {}, **kinds_of(Workers)),
    Face("", "Memory", {}, **kinds_of(Memory)),
    Face(".torch", "Device", {"device": "cpu"}, device=None, transform="callable?"),
    Face(".torch", "DataLoader", DATA, **TORCH),
    Face(".torch", "RingCollate", {}),
    Face("", "BatchSampler", {"indices": 20}),
    Face("", "Queue", {"maxsize": 3}, copy="word"),
    Face("", "StringList", {}),
    Face("", "empty", {"shape": 3}, dtype=None),
    Face("", "stream", BLOCKS, **{**kinds_of(FlowOptions), "batch_size": "count", "drop_last": "flag?"}),
    Face(".streams", "Stream", BLOCKS),
    Face(".streams", "ShardStream", {"shards": [0, 1], "read": blocks, "batch_size": 4}, shards="iterable"),
    Face(".images", "Folder", lambda at: {"root": at / "classes", **FLOATS}),
    Face(".images", "Tar", lambda at: {"shards": at / "a.tar", **FLOATS}),
    Face(".images", "TarStream", lambda at: {"shards": at / "a.tar", **FLOATS}, cache=None),
    Face(".images", "Parquet", lambda at: {"paths": at / "a.parquet", **FLOATS}, image=None, target=None),
    Face(".images", "Bytes", {"dataset": [(b"", 1)], **FLOATS}, image=None, target=None, fingerprint=None),
    Face(".images", "RandomResizedCrop", {"size": 8}),
    Face(".images", "Resize", {"size": 1}),
    Face(".images", "CenterCrop", {"size": 8}),
    Face(".images", "RandomHorizontalFlip", {}),
    Face(".images", "decode_into", {"data": b"x", "out": np.zeros((2, 2, 3), np.uint8)}, flip="flag?"),
    Face(".images", "decode", {"data": b"P6 2 1 255\n123456"}),
    Face(".images", "size", {"data": b"x"}),
    Face(".arrow", "TableDataset", lambda at: {"paths": at / "a.parquet"}),
    Face("", "Storage", {}),
    Face("", "Cache", {"budget": "1MiB"}),
    Face("", "cached", {"dataset": [1, 2], "cache": "1MiB"}, cache="size"),
    Face("", "progress", {"loader": [1], "file": io.StringIO()}),
    Face("", "replay", {"loader": [1]}),
    Face(
        ".adapters.di_engine", "AsyncDataLoader", {"data_source": lambda n: [{}] * n, "batch_size": 4, "device": "cpu"}
    ),
    Face(".adapters.megengine", "DataLoader", DATA, dataset=None, preload="flag?"),
    Face(".adapters.megengine", "SequentialSampler", DATA, **FOR_MEGENGINE, indices=None),
    Face(".adapters.megengine", "RandomSampler", DATA, **FOR_MEGENGINE, indices=None),
    Face(".adapters.megengine", "ReplacementSampler", DATA, **FOR_MEGENGINE),
    Face(".adapters.megengine", "StreamSampler", {}),
    Face(".adapters.megengine", "Infinite", {}, sampler="iterable"),
    Face(".adapters.megengine", "ConcatDataset", {}),
    Face(".adapters.megengine", "Compose", {}),
    Face(".adapters.paddle", "DataLoader", DATA, batch_size="count?"),
    Face(".adapters.paddle", "BatchSampler", DATA, dataset=None),
    Face(".adapters.paddle", "set_autotune_config", {"use_autotune": False}),
    Face(".adapters.webdataset", "MultiLoader", {"dataset": [1], "workers": 0}, dataset="iterable", workers="bounded"),
]


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


@pytest.mark.parametrize("face", FACES, ids=str)
def test_nonsense_is_refused_at_once_by_an_error_that_names_argument_and_value(folder, face):
    called, base, kinds = face.given(folder)
    faults = []
    for name, kind in kinds.items():
        wrong = [*NONSENSE[kind.removesuffix("?")]] if kind else []
        if kind and kind[-1] != "?" and kind not in NO_NONE:
            wrong.append(None)
        faults += [refusal_of(called, {**base, name: value}, name) for value in wrong]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("face", [face for face in FACES if face.name != "decode_into"], ids=str)
def test_numpys_integers_are_taken_as_pythons(folder, face):
    called, base, kinds = face.given(folder)
    parameters = inspect.signature(called).parameters
    for name, kind in kinds.items():
        if (kind or "").removesuffix("?") in INTEGERS:
            number = base.get(name, parameters[name].default if name in parameters else None)
            if not isinstance(number, int) or number > 255:
                number = 0 if name == "rank" else 2
            for made in (np.int64(number), np.uint8(number), np.array(number)):
                end(called(**{**base, name: made}))


def test_small_integers_of_numpy_do_not_overflow():
    kind = np.uint8
    sampler = slipring.BatchSampler(1000, kind(200), world_size=kind(2), rank=kind(1))
    assert list(sampler) == list(slipring.BatchSampler(1000, 200, world_size=2, rank=1))
    assert [len(batch["x"]) for batch in Stream([{"x": np.arange(600)}], kind(250))] == [250, 250, 100]
    shards = ShardStream(range(3), lambda _: [{"x": np.arange(100)}], kind(250), world_size=kind(1))
    assert [len(batch["x"]) for batch in shards] == [250, 50]

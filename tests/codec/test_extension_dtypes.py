"""Arrays of numpy's extension dtypes (ml_dtypes) work wherever numpy's own dtypes do."""

import copy

import numpy as np
import pytest

import slipring
from tests.support.inside import BadTreeDef, default_collate, parse
from tests.support.options import grouped
from tests.support.trip import same_array

ml_dtypes = pytest.importorskip("ml_dtypes")
NAMES = ["bfloat16", "float8_e4m3fn", "int4", "uint4"]


@pytest.fixture(params=NAMES)
def dtype(request):
    return np.dtype(getattr(ml_dtypes, request.param))


class Samples:
    """Arrays and scalars of bfloat16."""

    def __len__(self):
        return 8

    def __getitem__(self, k):
        return {"x": np.full(3, k, ml_dtypes.bfloat16), "scalar": ml_dtypes.bfloat16(k)}


def test_arrays_and_scalars_of_extension_dtypes_are_not_pickled(trip, dtype):
    sent = np.arange(6).reshape(2, 3).astype(dtype)
    for each in (sent, sent.T, sent[:, ::2], sent[:0], sent[0, 0], np.array(sent[1, 1])):
        got = trip(each)
        assert type(got) is type(each) and got.dtype == dtype and got.shape == each.shape
        assert np.asarray(got).tobytes() == np.asarray(each).tobytes()
        assert trip.pickled(each) == 0


def test_the_default_collation_stacks_extension_dtypes(trip, dtype):
    samples = [{"x": np.full((2, 3), k).astype(dtype), "n": dtype.type(k)} for k in range(4)]
    wanted = np.stack([sample["x"] for sample in samples])
    for batch in (default_collate(samples), trip(lambda: default_collate(samples))):
        assert same_array(wanted, batch["x"])
        assert same_array(np.arange(4).astype(dtype), batch["n"])


@pytest.mark.parametrize("options", [{"chunk_size": 2}, {"start_method": "spawn"}], ids=["chunks", "spawn"])
def test_a_loader_gives_extension_dtypes_without_a_pickle(options):
    with slipring.Loader(Samples(), batch_size=4, num_workers=2, **grouped(**options)) as loader:
        batches = [copy.deepcopy(batch) for batch in loader]
        assert loader.stats().pickled_leaves == 0
    for k, batch in enumerate(batches):
        numbers = np.arange(4 * k, 4 * k + 4).astype(ml_dtypes.bfloat16)
        assert same_array(np.repeat(numbers[:, None], 3, axis=1), batch["x"])
        assert same_array(numbers, batch["scalar"])


def test_the_receiving_process_finds_an_extension_dtype_by_the_name_of_its_scalar_type():
    assert parse(leaf("ml_dtypes", "bfloat16")) == ((0, np.dtype(ml_dtypes.bfloat16), None), 1, False)


@pytest.mark.parametrize(
    "name",
    [("ml_dtypes", "nothing"), ("ml_dtypes", "finfo"), ("numpy", "float32"), ("numpy", "object_"), ("numpy", "pi")],
    ids="-".join,
)
def test_a_name_that_is_no_extension_dtype_is_refused(name):
    with pytest.raises(BadTreeDef):
        parse(leaf(*name))


def test_structured_dtypes_with_extension_fields_keep_their_fields(trip):
    sent = np.zeros(3, [("a", ml_dtypes.bfloat16), ("b", ml_dtypes.float8_e5m2), ("c", "f4")])
    assert same_array(sent, trip(sent))


def leaf(module, name):
    """Return a treedef of one leaf, an array of an extension dtype."""
    texts = (text.encode() for text in (module, name))
    return b"E" + b"".join(len(text).to_bytes(4, "little") + text for text in texts)

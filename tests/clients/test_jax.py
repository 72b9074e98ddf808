"""Batches as JAX arrays: a slot stays unchanged as long as JAX refers to it."""

import numpy as np
import pytest

from slipring import Workers
from tests.support.options import grouped

jax = pytest.importorskip("jax", reason="pip install -r requirements-jax.txt")

import jax.numpy as jnp  # noqa: E402

import slipring  # noqa: E402


class Rows:
    """Sample i is 64 KiB of value i."""

    def __init__(self, n=64):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.full((128, 128), i, np.float32)


def loader(**options):
    options = {"num_workers": 1, "slots": 8, "copy": "never", **options}
    return slipring.Loader(Rows(), batch_size=2, **grouped(**options))


def expected(k):
    return np.stack([np.full((128, 128), i, np.float32) for i in (2 * k, 2 * k + 1)])


class Arrays(Rows):
    def __getitem__(self, i):
        return {"x": jnp.full((4, 3), i, jnp.bfloat16), "y": jnp.asarray(i)}


def test_samples_of_jax_arrays_become_numpy_arrays():
    with slipring.Loader(Arrays(8), batch_size=4, num_workers=2, workers=Workers(start_method="thread")) as batches:
        for k, batch in enumerate(batches):
            numbers = np.arange(4 * k, 4 * k + 4)
            assert type(batch["x"]) is np.ndarray and batch["x"].dtype == jnp.bfloat16
            assert (batch["x"] == numbers[:, None, None]).all() and (batch["y"] == numbers).all()
        assert batches.stats().pickled_leaves == 0


WAYS = {"dlpack": lambda batch: jax.dlpack.from_dlpack(batch), "put": jax.device_put, "asarray": jnp.asarray}


@pytest.mark.parametrize("way", WAYS)
def test_a_slot_is_not_written_while_jax_sees_it(way):
    with loader() as batches:
        held = []
        for k, batch in enumerate(batches):
            array = WAYS[way](batch)
            if k in (0, 5, 9):
                held.append((k, array, array[1:], array.reshape(-1)))
        # All slots were used several times.
        assert batches.stats().batches == 32
        for k, array, rows, flat in held:
            np.testing.assert_array_equal(array, expected(k))
            np.testing.assert_array_equal(rows, expected(k)[1:])
            np.testing.assert_array_equal(flat, expected(k).reshape(-1))


def test_the_slot_is_used_again_when_jax_has_let_go():
    with loader() as batches:
        for k, batch in enumerate(batches):  # copy="never": if each batch kept its slot, this would raise
            array = jax.dlpack.from_dlpack(batch)
            assert float(array[0, 0, 0]) == 2 * k and array.unsafe_buffer_pointer() == batch.ctypes.data
        assert batches.stats().copied_batches == 0


def test_a_later_computation_of_jax_reads_the_unchanged_batch():
    @jax.jit
    def slow(x):
        for _ in range(20):
            x = jnp.tanh(x @ x / 1e6) + x
        return x.mean(axis=(1, 2))

    with loader(copy="auto") as batches:
        # Neither batch nor array is kept: only the running computation refers to the slot.
        results = [slow(jax.dlpack.from_dlpack(batch)) for batch in batches]
    for k, result in enumerate(results):
        np.testing.assert_allclose(result, slow(expected(k)), rtol=1e-6)

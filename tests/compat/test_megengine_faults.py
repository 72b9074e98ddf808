"""Faults behind which MegEngine's face goes on."""

import time

import pytest

from slipring import LoaderTimeout
from slipring.compat.megengine import DataLoader, StreamDataset, StreamSampler, Transform


class Pausing(StreamDataset):
    def __iter__(self):
        for i in range(6):
            if i == 2:
                time.sleep(1.0)
            yield i


class Six(StreamDataset):
    def __iter__(self):
        return iter(range(6))


class Refusing(Transform):
    def apply(self, sample):
        if sample == 3:
            raise LookupError(sample)
        return sample


@pytest.mark.parametrize(("num_workers", "parallel"), [(0, False), (2, False), (1, True)])
@pytest.mark.parametrize(
    ("stream", "error", "rest"),
    [
        ((Pausing(), StreamSampler(2)), LoaderTimeout, [[0, 1], [2, 3], [4, 5]]),
        ((Six(), StreamSampler(2), Refusing()), LookupError, [[0, 1], [4, 5]]),
    ],
)
def test_a_stream_goes_on_after_a_timeout_and_after_its_transform_has_failed(
    num_workers, parallel, stream, error, rest
):
    timeout = 0.4 if error is LoaderTimeout else 0
    loader = DataLoader(*stream, num_workers=num_workers, timeout=timeout, parallel_stream=parallel)
    batches, got, errors = iter(loader), [], 0
    while len(got) < len(rest):
        try:
            got.append(next(batches).tolist())
        except error:
            errors += 1
    assert got == rest and errors
    batches.close()

"""slipring.adapters.megengine's datasets and transforms, without MegEngine, which has no wheel."""

import numpy as np
import pytest

from slipring.adapters.megengine import (
    ArrayDataset,
    Compose,
    ConcatDataset,
    DataLoader,
    PseudoTransform,
    SequentialSampler,
    StreamSampler,
    Transform,
)
from tests.adapters.streams import Numbers


class Plus(Transform):
    def __init__(self, n):
        self.n = n

    def apply(self, input):
        return [*input, self.n] if isinstance(input, list) else input + self.n


class Whole(Plus):
    def apply_batch(self, inputs):
        return [len(inputs)] * len(inputs)


def test_samples_of_an_array_dataset_are_tuples_of_its_arrays_elements():
    images, labels = np.arange(20).reshape(5, 4), list("abcde")
    dataset = ArrayDataset(images, labels)
    assert len(dataset) == 5 and dataset[3][0].tolist() == [12, 13, 14, 15] and dataset[3][1] == "d"
    loader = DataLoader(dataset, SequentialSampler(dataset, 3), num_workers=2)
    assert [(image.tolist(), label) for image, label in loader] == [
        (images[:3].tolist(), ["a", "b", "c"]),
        (images[3:].tolist(), ["d", "e"]),
    ]
    with pytest.raises(ValueError, match=r"of one length, not of lengths \[5, 4\]"):
        ArrayDataset(images, labels[:4])
    with pytest.raises(ValueError, match="one or more"):
        ArrayDataset()


def test_a_concat_dataset_has_its_datasets_one_after_the_other():
    parts = [ArrayDataset([0, 1, 2]), ArrayDataset([]), ArrayDataset([3, 4])]
    dataset = ConcatDataset(iter(parts))
    assert dataset.datasets == parts and dataset.cumulative_sizes == [3, 3, 5]
    assert [dataset[i] for i in range(5)] == [(i,) for i in range(5)] == [dataset[i - 5] for i in range(5)]
    with pytest.raises(ValueError, match="from -5 to 4, not -6"):
        dataset[-6]
    with pytest.raises(IndexError, match="from -5 to 4, not 5"):
        dataset[5]
    with pytest.raises(AssertionError, match="one or more"):
        ConcatDataset([])
    with pytest.raises(AssertionError, match="Numbers is a stream"):
        ConcatDataset([*parts, Numbers()])


def test_a_stream_has_no_length_and_no_indices():
    stream = Numbers(act=bool)
    with pytest.raises(AssertionError, match="no length"):
        len(stream)
    with pytest.raises(AssertionError, match="sample 3"):
        stream[3]
    assert list(stream) == list(range(7))
    assert DataLoader(stream, StreamSampler(2)).datakind == "stream"


def test_compose_applies_transforms_one_after_the_other():
    both = Compose([Plus(1), Plus(10)])
    assert both.apply(5) == 16 and both.apply_batch([0, 1]) == (11, 12) and repr(both) == "Compose"
    assert PseudoTransform().apply_batch([1, 2]) == (1, 2)
    by_batch = Compose([Whole(1), Whole(2), Plus(3)], batch_compose=True)
    assert by_batch.apply_batch([7, 8]) == (5, 5)


def test_compose_draws_the_places_of_the_transforms_in_a_group():
    names = [Plus(1), Plus(2), Plus(3), Plus(4)]
    drawn = Compose(names, shuffle_indices=[(1, 3)])
    np.random.seed(1)
    orders = [tuple(drawn.apply([])) for _ in range(40)]
    assert set(orders) == {(1, 2, 3, 4), (3, 2, 1, 4)}
    np.random.seed(1)
    assert [tuple(order) for order in drawn.apply_batch([[]] * 40)] == orders
    assert {tuple(Compose(names, shuffle_indices=[(1, 2), (3, 4)]).apply([])) for _ in range(60)} == {
        (1, 2, 3, 4), (2, 1, 3, 4), (1, 2, 4, 3), (2, 1, 4, 3),
    }  # fmt: skip


def test_compose_gives_its_transforms_the_order_of_the_parts():
    inner, plain = Compose([Plus(1)]), Plus(2)
    outer = Compose([inner, plain], order=("image", "boxes", "boxes_category", "info"))
    assert inner.order == plain.order == inner.transforms[0].order == outer.order
    for order, kind in ((("batch",), ValueError), (("sound",), NotImplementedError)):
        with pytest.raises(kind, match="order must"):
            Compose([], order=order)

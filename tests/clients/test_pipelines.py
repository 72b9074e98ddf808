"""Pipelines of Grain and of torchdata as datasets of `slipring.Loader`, as docs/datasets.md describes them."""

import pytest

import slipring


def test_a_map_dataset_of_grain_is_read_with_its_transformations():
    grain = pytest.importorskip("grain", reason="pip install grain")
    data = grain.MapDataset.range(100).map(float)
    with slipring.Loader(data, batch_size=10, shuffle=True, num_workers=2, seed=1) as loader:
        assert sorted(value for batch in loader for value in batch.tolist()) == list(range(100))


def test_elements_that_grain_has_filtered_out_are_skipped():
    grain = pytest.importorskip("grain", reason="pip install grain")
    data = grain.MapDataset.range(10).filter(lambda x: x % 2 == 0)
    with slipring.Loader(data, batch_size=10, num_workers=1, skip_none=True) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 2, 4, 6, 8]]


def test_a_loader_of_torchdata_nodes_continues_at_its_state():
    nodes = pytest.importorskip("torchdata.nodes", reason="pip install -r requirements-clients.txt")
    pipeline = nodes.Loader(nodes.Mapper(nodes.IterableWrapper(range(12)), float))
    with slipring.Loader(pipeline, batch_size=4, num_workers=1) as loader:
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in loader] == [[4, 5, 6, 7], [8, 9, 10, 11]]

"""Accelerate's loops with our loader instead of torch's."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HOW = "pip install -r requirements-clients.txt"
accelerate = pytest.importorskip("accelerate", reason=HOW)

import torch  # noqa: E402

import slipring.torch  # noqa: E402
from slipring import BatchSampler  # noqa: E402
from slipring.tokens import PackedSampler  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import EXTRAS, Line, Points, epochs, extras  # noqa: E402


@pytest.fixture(autouse=True)
def installed():
    """Install our loader instead of torch's; reset Accelerate's state after each test."""
    with slipring.torch.install():
        yield
    accelerate.Accelerator().free_memory()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def train(accelerator, loader, model, optimizer, epochs):
    for _ in range(epochs):
        for batch in loader:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def prepared(**kwargs):
    accelerator = accelerate.Accelerator(cpu=True)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Points(), 4, num_workers=2, **kwargs)
    return accelerator, *accelerator.prepare(loader, model, optimizer)


def test_a_prepared_loader_is_ours_with_its_extras():
    accelerator, shard, model, optimizer = prepared(shuffle=True, **EXTRAS)
    with shard.base_dataloader as ours:
        train(accelerator, shard, model, optimizer, 3)
        assert type(ours) is DataLoader and extras(ours) == EXTRAS
        assert ours.stats().batches == 18
    orders = epochs(model.seen)
    assert len(orders) == 3 and orders[0] != orders[1] != orders[2]


def test_skipping_the_first_batches_makes_a_loader_of_ours():
    _, shard, *_ = prepared(**EXTRAS)
    skipping = accelerate.skip_first_batches(shard, 4)
    with shard.base_dataloader, skipping.base_dataloader as ours:
        assert torch.cat([batch["i"] for batch in skipping]).tolist() == list(range(16, 24))
        assert extras(ours) == EXTRAS
        assert ours.stats().batches == 2


def test_a_loader_from_before_is_prepared_too_and_torchdatas_is_made_if_accelerate_is_told_to():
    shard = accelerate.Accelerator(cpu=True).prepare(slipring.torch.drop_in.replacement.OriginalDataLoader(Points(), 4))
    assert type(shard.base_dataloader) is DataLoader
    assert torch.cat([batch["i"] for batch in shard]).tolist() == list(range(24))
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason=HOW)
    config = accelerate.DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    shard = accelerator.prepare(DataLoader(Points(), 4, **EXTRAS))
    assert type(shard.base_dataloader) is torchdata.StatefulDataLoader
    assert torch.cat([batch["i"] for batch in shard]).tolist() == list(range(24))


LOADERS = {"ours": DataLoader, "torch's": slipring.torch.drop_in.replacement.OriginalDataLoader}


def part_of(rank, loader, **options):
    """Return the loader that Accelerate prepares on a rank of two, and that stays on the CPU."""
    return accelerate.data_loader.prepare_data_loader(
        loader, **{"num_processes": 2, "process_index": rank, "put_on_device": False, **options}
    )


@pytest.mark.parametrize("whose", LOADERS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("split", [False, True])
def test_a_divided_sampler_is_not_divided_again(whose, num_workers, split):
    for installed in (True, False):
        sampler = BatchSampler(24, 4, rank=1, world_size=2, shuffle=True)
        loader = LOADERS[whose](Points(), batch_sampler=sampler, num_workers=num_workers)
        with pytest.raises(ValueError, match=r"rank=1 and world_size=2.*2 processes again.*prepare\(\), or leave out"):
            next(iter(part_of(1, loader, split_batches=split)))
        if installed:
            slipring.torch.uninstall()
    slipring.torch.install()


@pytest.mark.parametrize("whose", LOADERS)
def test_an_undivided_sampler_is_divided_once_and_needs_a_seed(whose):
    def part(rank, ranks=2, **options):
        loader = LOADERS[whose](Points(), batch_sampler=BatchSampler(24, 4, **options))
        return [i for batch in part_of(rank, loader, num_processes=ranks) for i in batch["i"].tolist()]

    for options in ({"shuffle": True, "seed": 3}, {}):
        assert sorted(part(0, **options) + part(1, **options)) == list(range(24))
    assert sorted(part(0, 1, shuffle=True)) == list(range(24))
    for options in ({"shuffle": True}, {"num_samples": 24}):
        with pytest.raises(ValueError, match=r"seed=None.*each of 2 processes has another order.*give it a seed"):
            part(0, **options)


@pytest.mark.parametrize("whose", LOADERS)
@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"rank": 1, "world_size": 2}])
def test_packs_are_not_divided_because_accelerate_would_lose_some(whose, options):
    loader = LOADERS[whose](Points(), batch_sampler=PackedSampler([3] * 24, 8, **options))
    with pytest.raises(
        ValueError, match=r"divided among 2 processes, which loses.*prepare\(\), and give PackedSampler"
    ):
        next(iter(part_of(1, loader)))


def test_the_rank_that_reads_for_all_does_not_read_its_part_alone():
    accelerate.PartialState(cpu=True).num_processes = 2
    loader = DataLoader(Points(), batch_sampler=BatchSampler(24, 4, rank=0, world_size=2))
    with pytest.raises(ValueError, match="would be divided among 2 processes again"):
        next(iter(part_of(0, loader, dispatch_batches=True, put_on_device=True)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_divided_shards_are_not_divided_again(tmp_path, num_workers):
    images = pytest.importorskip("slipring.images")
    pytest.importorskip("PIL")
    from tests.support.shards import files, shard

    paths = [shard(tmp_path / f"{k}.tar", files(4, 10 * k)) for k in range(2)]

    def loader(**options):
        data = images.TarStream(paths, images.Resize((4, 4)), target=None, **options)
        return DataLoader(data, 1, num_workers=num_workers)

    with pytest.raises(ValueError, match=r"TarStream has rank=1 and world_size=2.*2 processes again"):
        next(iter(part_of(1, loader(rank=1, world_size=2))))
    assert [len(list(part_of(rank, loader()))) for rank in range(2)] == [4, 4]


def test_accelerate_has_its_own_arguments_again_after():
    table = accelerate.data_loader._PYTORCH_DATALOADER_KWARGS
    ours = accelerate.data_loader.DataLoaderAdapter.__init__
    assert {"workers", "memory", "slipring_device"} <= set(table)
    slipring.torch.uninstall()
    assert not set(EXTRAS) & set(table)
    assert accelerate.data_loader.DataLoaderAdapter.__init__ is ours.__wrapped__
    assert accelerate.data_loader.DataLoader is slipring.torch.drop_in.replacement.OriginalDataLoader
    slipring.torch.install()


LATE = """
import slipring.torch
slipring.torch.install()
import torch.utils.data
from accelerate import Accelerator
loader = torch.utils.data.DataLoader(range(8), 2, workers=slipring.Workers(chunk_size=1))
with Accelerator(cpu=True).prepare(loader).base_dataloader as ours:
    assert ours is not loader and type(ours) is slipring.torch.DataLoader
    assert ours.workers.chunk_size == 1
"""


def test_accelerate_may_be_imported_after_install():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr

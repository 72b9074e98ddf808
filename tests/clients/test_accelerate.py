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
    shard = accelerate.Accelerator(cpu=True).prepare(slipring.torch.drop_in.standin.Stock(Points(), 4))
    assert type(shard.base_dataloader) is DataLoader
    assert torch.cat([batch["i"] for batch in shard]).tolist() == list(range(24))
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason=HOW)
    config = accelerate.DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    shard = accelerator.prepare(DataLoader(Points(), 4, **EXTRAS))
    assert type(shard.base_dataloader) is torchdata.StatefulDataLoader
    assert torch.cat([batch["i"] for batch in shard]).tolist() == list(range(24))


def test_accelerate_has_its_own_arguments_again_after():
    table = accelerate.data_loader._PYTORCH_DATALOADER_KWARGS
    ours = accelerate.data_loader.DataLoaderAdapter.__init__
    assert {"workers", "memory", "slipring_device"} <= set(table)
    slipring.torch.uninstall()
    assert not set(EXTRAS) & set(table)
    assert accelerate.data_loader.DataLoaderAdapter.__init__ is ours.__wrapped__
    assert accelerate.data_loader.DataLoader is slipring.torch.drop_in.standin.Stock
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

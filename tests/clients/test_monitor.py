"""A loader's figures reach the logs of the training that reads from it."""

import csv

import pytest

pytest.importorskip("torch")

import torch

import slipring.torch
from slipring.torch import DataLoader
from tests.clients.points import Line, Points

NAMES = {"slipring/batches_per_s", "slipring/mb_per_s", "slipring/wait_share", "slipring/workers_busy_share"}


@pytest.fixture
def lightning():
    return pytest.importorskip("pytorch_lightning", reason="pip install -r requirements-clients.txt")


def module(pl):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = Line()

        def training_step(self, batch):
            return self.line(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def fit(pl, tmp_path, monitor, loader):
    logger = pl.loggers.CSVLogger(tmp_path)
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=logger, callbacks=[monitor], default_root_dir=tmp_path,
        **quiet,
    )  # fmt: skip
    trainer.fit(module(pl), loader)
    return logger


def test_lightnings_logger_gets_the_scalars_every_n_steps(lightning, tmp_path):
    from slipring.monitor.lightning import DataMonitor

    monitor = DataMonitor(every=4)
    with DataLoader(Points(), 4, num_workers=2) as loader:
        logger = fit(lightning, tmp_path, monitor, loader)
    with open(logger.experiment.metrics_file_path) as file:
        lines = [line for line in csv.DictReader(file) if line["slipring/wait_share"]]
    assert len(lines) == 3  # of 12 steps
    assert all(set(line) >= NAMES for line in lines)
    assert monitor.last["slipring/batches_per_s"] > 0
    assert 0 <= monitor.last["slipring/wait_share"] <= 1


def test_lightning_with_another_loader_is_an_error_with_the_remedy(lightning, tmp_path):
    from slipring.monitor.lightning import DataMonitor

    with pytest.raises(ValueError, match=r"reads from a DataLoader: use slipring\.torch\.DataLoader"):
        fit(lightning, tmp_path, DataMonitor(), torch.utils.data.DataLoader(Points(), 4))


def test_lightnings_callback_takes_several_loaders_and_one_that_is_given(lightning, tmp_path):
    from slipring.monitor.lightning import DataMonitor

    with DataLoader(Points(), 4, num_workers=1) as one, DataLoader(Points(), 4, num_workers=1) as other:
        monitor = DataMonitor(loader={"one": one, "other": [other]}, every=12)
        fit(lightning, tmp_path, monitor, one)
        assert monitor.last["slipring/batches_per_s"] > 0
        assert other.stats().batches == 0


@pytest.fixture
def transformers():
    pytest.importorskip("accelerate", reason="pip install -r requirements-clients.txt")
    yield pytest.importorskip("transformers", reason="pip install -r requirements-clients.txt")
    import accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def trainer_of(transformers, folder):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        logging_strategy="no", remove_unused_columns=False, per_device_train_batch_size=4,
        dataloader_num_workers=2, num_train_epochs=2,
    )  # fmt: skip
    return transformers.Trainer(Line(), arguments, train_dataset=Points())


def test_transformers_log_gets_the_scalars_every_n_steps(transformers, tmp_path):
    from slipring.monitor.transformers import DataMonitor

    with slipring.torch.install():
        trainer = trainer_of(transformers, tmp_path)
        monitor = DataMonitor(trainer, every=4)
        trainer.add_callback(monitor)
        trainer.train()
    lines = [line for line in trainer.state.log_history if "slipring/wait_share" in line]
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert all(set(line) >= NAMES for line in lines)
    assert monitor.last["slipring/batches_per_s"] > 0


def test_transformers_with_torchs_loader_is_an_error_with_the_remedy(transformers, tmp_path):
    from slipring.monitor.transformers import DataMonitor

    trainer = trainer_of(transformers, tmp_path)
    trainer.add_callback(DataMonitor(trainer))
    with pytest.raises(ValueError, match="DataMonitor needs a loader of slipring's"):
        trainer.train()

"""Lightning's Trainer over our loader, whose figures reach the Trainer's logger."""

import csv

import pytest

pytest.importorskip("torch")
pl = pytest.importorskip("pytorch_lightning", reason="pip install -r requirements-clients.txt")

import torch  # noqa: E402

import slipring.torch  # noqa: E402
from slipring.monitor.lightning import DataMonitor  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import EXTRAS, SCALARS, Line, Points, epochs, extras  # noqa: E402


class Module(pl.LightningModule):
    """Trains a `Line`; makes its own loader if it gets arguments for one."""

    def __init__(self, loader=None):
        super().__init__()
        self.line = Line()
        if loader:
            self.train_dataloader = loader

    def training_step(self, batch):
        return self.line(**batch)["loss"]

    def predict_step(self, batch):
        return batch["i"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(scope="module", autouse=True)
def gloo_opened():
    """Open the files that torch opens with a process's first group and keeps, before files are counted."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.distributed.destroy_process_group()


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A function that makes a Trainer without output and files; destroy its process group at the end."""
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")

    def make(**kwargs):
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
        quiet["enable_model_summary"] = False
        return pl.Trainer(accelerator="cpu", devices=1, default_root_dir=tmp_path, **{**quiet, **kwargs})

    yield make
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_a_trainer_that_makes_the_loader_again_for_its_sampler_keeps_the_extras(trainer):
    module, fits = Module(), trainer(max_epochs=2, strategy="ddp")
    loader = DataLoader(Points(), 4, shuffle=True, num_workers=2, **EXTRAS)
    fits.fit(module, loader)
    assert loader.stats().batches == 0
    with fits.train_dataloader as recreated:
        assert type(recreated) is DataLoader and recreated is not loader
        assert type(recreated.sampler) is torch.utils.data.DistributedSampler
        assert extras(recreated) == EXTRAS
        assert recreated.stats().batches == 12
    first, second = epochs(module.line.seen)
    assert first != second


class Checkpoint(pl.Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_trainer_continues_within_the_epoch_where_its_checkpoint_was(trainer, tmp_path, num_workers):
    def fit(**kwargs):
        module = Module()
        with DataLoader(Points(), 4, shuffle=True, num_workers=num_workers) as loader:
            fits.fit(module, loader, weights_only=False, **kwargs)
            return module.line.seen, loader.stats().batches

    fits = trainer(max_epochs=1, callbacks=[Checkpoint(4, tmp_path / "at 4")])
    whole, _ = fit()
    fits = trainer(max_epochs=2)
    resumed, batches = fit(ckpt_path=tmp_path / "at 4")
    assert resumed[:8] == whole[16:]
    epochs(resumed[8:])
    assert batches == 2 + 6


def test_a_trainer_predicts_from_a_loader_made_again(trainer):
    predicts = trainer()
    got = predicts.predict(Module(), DataLoader(Points(), 5, num_workers=2, drop_last=True, **EXTRAS))
    assert torch.cat(got).tolist() == list(range(24))
    with predicts.predict_dataloaders as recreated:
        assert extras(recreated) == EXTRAS and recreated.stats().batches == 5


@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader])
def test_a_divided_sampler_is_not_divided_again(trainer, kind):
    def loader():
        return kind(Points(), batch_sampler=slipring.BatchSampler(24, 4, rank=1, world_size=2))

    with pytest.raises(TypeError, match=r"not a DistributedSampler.*use_distributed_sampler=False"):
        trainer(max_epochs=1, strategy="ddp").fit(Module(), loader())
    torch.distributed.destroy_process_group()
    module = Module()
    trainer(max_epochs=1, strategy="ddp", use_distributed_sampler=False).fit(module, loader())
    assert module.line.seen == list(range(1, 24, 2))


@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader])
def test_a_divided_sampler_within_lightnings_is_not_divided_again(kind):
    wrapper = pytest.importorskip("lightning_fabric.utilities.distributed").DistributedSamplerWrapper
    twice = wrapper(slipring.BatchSampler(24, 4, rank=1, world_size=2), num_replicas=2, rank=1)
    with pytest.raises(ValueError, match=r"world_size=2.*2 processes again.*use_distributed_sampler=False"):
        next(iter(kind(torch.arange(24), sampler=twice, batch_size=None)))


class OnTorchs(torch.utils.data.DataLoader):
    """A user's class from before `install`: only Lightning's wrapper can make a new one."""

    def __init__(self, size, dataset, **kwargs):
        super().__init__(dataset, batch_size=size, **kwargs)


def test_a_trainer_takes_all_loaders_while_ours_is_installed(trainer):
    stock = torch.utils.data.DataLoader(Points(), 4)
    with slipring.torch.install():
        fits = trainer(max_epochs=1, strategy="ddp")
        fits.fit(Module(lambda: torch.utils.data.DataLoader(Points(), 4, num_workers=2, **EXTRAS)))
        with fits.train_dataloader as ours:
            assert type(ours) is DataLoader and extras(ours) == EXTRAS
            assert ours.stats().batches == 6
        for loader in (lambda: stock, lambda: OnTorchs(4, Points())):
            module = Module(loader)
            fits = trainer(max_epochs=1, strategy="ddp")
            fits.fit(module)
            assert type(fits.train_dataloader) is type(loader())
            epochs(module.line.seen)


def test_the_trainers_logger_gets_the_loaders_scalars_every_n_steps(trainer, tmp_path):
    monitor, logger = DataMonitor(every=4), pl.loggers.CSVLogger(tmp_path)
    with DataLoader(Points(), 4, num_workers=2) as loader:
        trainer(max_epochs=2, logger=logger, callbacks=[monitor]).fit(Module(), loader)
    with open(logger.experiment.metrics_file_path) as file:
        lines = [line for line in csv.DictReader(file) if line["slipring/wait_share"]]
    assert len(lines) == 3  # of 12 steps
    assert all(set(line) >= SCALARS for line in lines)
    assert monitor.last["slipring/batches_per_s"] > 0 and 0 <= monitor.last["slipring/wait_share"] <= 1


def test_the_monitor_takes_loaders_by_name_and_refuses_one_of_torchs(trainer, tmp_path):
    with DataLoader(Points(), 4, num_workers=1) as one, DataLoader(Points(), 4, num_workers=1) as other:
        monitor = DataMonitor(loader={"one": one, "other": [other]}, every=12)
        trainer(max_epochs=2, logger=pl.loggers.CSVLogger(tmp_path), callbacks=[monitor]).fit(Module(), one)
        assert monitor.last["slipring/batches_per_s"] > 0 and other.stats().batches == 0
    with pytest.raises(ValueError, match=r"reads from a DataLoader: use slipring\.torch\.DataLoader"):
        trainer(max_epochs=1, callbacks=[DataMonitor()]).fit(Module(), torch.utils.data.DataLoader(Points(), 4))

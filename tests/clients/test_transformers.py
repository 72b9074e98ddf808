"""Hugging Face's Trainer, which makes its loaders itself, with ours in torch's place."""

import contextlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="pip install -r requirements-clients.txt")
transformers = pytest.importorskip("transformers", reason="pip install -r requirements-clients.txt")

import accelerate  # noqa: E402

import slipring.torch  # noqa: E402
from slipring.monitor.transformers import DataMonitor  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import SCALARS, Line, Points, epochs  # noqa: E402


class Keep(transformers.TrainerCallback):
    """Keeps the loaders that the Trainer has made."""

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        self.train = train_dataloader.base_dataloader

    def on_evaluate(self, args, state, control, eval_dataloader=None, **kwargs):
        self.eval = eval_dataloader.base_dataloader


@pytest.fixture(autouse=True)
def forgetting():
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def arguments(folder, **kwargs):
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        dataloader_num_workers=2,
        **kwargs,
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_a_trainer_trains_and_evaluates_from_our_loader(tmp_path, persistent):
    model, keep = Line(), Keep()
    with slipring.torch.install():
        trainer = transformers.Trainer(
            model,
            arguments(tmp_path, num_train_epochs=2, dataloader_persistent_workers=persistent),
            train_dataset=Points(),
            eval_dataset=Points(8),
            callbacks=[keep],
        )
        trainer.train()
        first, second = epochs(model.seen)
        assert first != second
        trainer.evaluate()
    for loader, batches in ((keep.train, 12), (keep.eval, 2)):
        with loader:
            assert type(loader) is DataLoader
            assert loader.stats().batches == batches


class Divided(transformers.Trainer):
    """Makes its own loader, of a sampler that divides the samples, and lets Accelerate prepare it."""

    def get_train_dataloader(self):
        sampler = slipring.BatchSampler(24, 4, rank=0, world_size=2)
        return self.accelerator.prepare(torch.utils.data.DataLoader(Points(), batch_sampler=sampler))


@pytest.mark.parametrize("installed", [True, False])
def test_a_divided_sampler_is_not_divided_again(tmp_path, installed):
    with slipring.torch.install() if installed else contextlib.nullcontext():
        trainer = Divided(Line(), arguments(tmp_path, num_train_epochs=1), train_dataset=Points())
        trainer.accelerator.state.num_processes = 2
        with pytest.raises(ValueError, match=r"world_size=2.*2 processes again.*prepare\(\)"):
            trainer.train()


def test_the_log_gets_the_loaders_scalars_every_n_steps(tmp_path):
    with slipring.torch.install():
        trainer = transformers.Trainer(Line(), arguments(tmp_path, num_train_epochs=2), train_dataset=Points())
        monitor = DataMonitor(trainer, every=4)
        trainer.add_callback(monitor)
        trainer.train()
    lines = [line for line in trainer.state.log_history if "slipring/wait_share" in line]
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert all(set(line) >= SCALARS for line in lines) and monitor.last["slipring/batches_per_s"] > 0


def test_the_monitor_refuses_torchs_loader(tmp_path):
    trainer = transformers.Trainer(Line(), arguments(tmp_path), train_dataset=Points())
    trainer.add_callback(DataMonitor(trainer))
    with pytest.raises(ValueError, match="DataMonitor needs a loader of slipring's"):
        trainer.train()

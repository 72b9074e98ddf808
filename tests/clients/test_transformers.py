"""Hugging Face's Trainer, which makes its loaders itself, with ours in torch's place."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="pip install -r requirements-clients.txt")
transformers = pytest.importorskip("transformers", reason="pip install -r requirements-clients.txt")

import accelerate  # noqa: E402

import slipring.torch  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import Line, Points, epochs  # noqa: E402


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

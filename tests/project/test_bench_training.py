"""bench.training with little data: its networks, its figures, and the command."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench.baselines.recipes import CLASSES, SIDE  # noqa: E402
from bench.training.__main__ import main  # noqa: E402
from bench.training.loaders import (  # noqa: E402
    BOUND,
    LOADERS,
    ON_GPU,
    ON_PIL,
    ON_TENSORS,
    OURS,
    TRANSLATED,
    one_tensor,
    read,
)
from bench.training.loop import HostClock, figures, measured  # noqa: E402
from bench.training.networks import NETWORKS, Training  # noqa: E402
from tests.support.pictures import encoded, pixels  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def photographs(tmp_path):
    """Two class folders with two small images each."""
    for number in range(4):
        folder = tmp_path / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(encoded(pixels(48, 64, number)))
    return tmp_path / "photos"


@pytest.mark.parametrize("network", [pytest.param(n, marks=() if n == "small" else pytest.mark.slow) for n in NETWORKS])
def test_a_network_learns_the_same_from_both_layouts_of_a_batch(network):
    batch, labels = torch.randint(0, 256, (2, SIDE, SIDE, 3), dtype=torch.uint8), torch.tensor([3, CLASSES - 1])
    losses = []
    for images in (batch, batch.permute(0, 3, 1, 2).contiguous()):
        torch.manual_seed(0)
        training = Training(network, torch.device("cpu"))
        losses.append(training.step(images, labels).item())
        assert all(parameter.grad is not None for parameter in training.network.parameters())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_device_waits_from_the_end_of_a_step_to_the_beginning_of_the_next():
    found = figures([0.0, 1.0, 4.0, 4.5, 10.0], HostClock(), 32)  # an end, then beginnings and ends
    assert found["per_s"] == pytest.approx(2 * 32 / 10) and found["waiting"] == pytest.approx(1.5 / 10)
    assert found["p50"] == 5.0 and 5.9 < found["p99"] < 6.0


def test_the_files_of_a_batch_travel_in_one_tensor(photographs):
    paths = sorted(photographs.rglob("*.jpg"))
    joined, sizes, labels = one_tensor([(read(str(path)), number) for number, path in enumerate(paths)])
    assert [bytes(file.numpy()) for file in joined.split(sizes)] == [path.read_bytes() for path in paths]
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("loader", [TRANSLATED, ON_PIL, ON_TENSORS])
def test_a_loader_whose_library_is_missing_is_a_row_with_the_reason(loader, photographs, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)  # of the other tests
    monkeypatch.delitem(sys.modules, "bench.baselines._torchvision", raising=False)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    found = measured("small", loader, str(photographs), workers=1, seconds=0.1)
    assert "torchvision" in found["missing"]


def test_a_missing_folder_is_named_and_not_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.training", "--quick", "--data", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        main()
    assert "none: no such folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="make bench installs torchvision")
def test_a_training_is_measured_with_each_loader_until_the_time_is_over(photographs, tmp_path):
    command = [sys.executable, "-m", "bench.training", "--quick", "--seconds", "0.1", "--network", "small"]
    command += ["--rounds", "2", "--minutes", "0", "--workers", "1"]
    command += ["--data", photographs, "--record", tmp_path / "found.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "found.json").read_text())
    assert result["note"].startswith("rounds: 1")
    tables = result["tables"]
    found = {row[0]: dict(zip(tables["small"]["columns"], row, strict=True)) for row in tables["small"]["rows"]}
    assert list(found) == list(LOADERS)
    if not torch.cuda.is_available():
        assert found.pop(ON_GPU)["images/s"] is None and f"{ON_GPU}: it needs a CUDA device" in result["note"]
    assert all(row["images/s"][0] > 0 and 0 <= row["device waits, %"][0] <= 100 for row in found.values())
    assert all(row["step p50, ms"][0] <= row["step p99, ms"][0] for row in found.values())
    assert found[BOUND]["of the bound, %"][0] == 100
    ((recipe, *figures_of_recipe),) = tables["cores"]["rows"]
    assert recipe == "trivial" and all(figure > 0 for figure in figures_of_recipe)
    shares, waits = ((row[3], row[4]) for row in tables["targets"]["rows"])
    assert shares[0] == found[OURS]["of the bound, %"] and waits[0] == found[OURS]["device waits, %"]
    assert {shares[1], waits[1]} <= {"yes", "no", "–"}

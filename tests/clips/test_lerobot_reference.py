"""`clips.LeRobot` has the samples of LeRobot's own dataset, to the bit.

LeRobot 0.4.4 asks for older releases of PyAV and torch than slipring's tests do, but works with newer ones. Its
environment needs `pip install --no-deps lerobot==0.4.4 torchvision torchcodec==0.11.1`, `datasets<5`, `numpy<2.3` and
what its import asks for; torchcodec needs FFmpeg's libraries.
"""

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("lerobot", reason="LeRobot is not installed")
pytest.importorskip("bench.baselines._torchvision")  # before LeRobot, which imports torchvision

import torch
from lerobot.datasets import lerobot_dataset as lerobot

from slipring import clips
from slipring.torch import DataLoader
from tests.support.robots import TOP, WRIST, write_dataset
from tests.support.videos import pictures

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.leaks_ok("LeRobot keeps videos and a thread open")]

DELTAS = {TOP: [-0.2, 0.0], WRIST: [0.1], "action": [0.0, 0.1, 0.5], "contacts": [-0.1], "next.done": [0.0, 1.0]}


def assert_same(sample, other):
    assert list(sample) == list(other)
    for key, value in other.items():
        if isinstance(value, (str, list)):
            assert sample[key] == value
            continue
        found, wanted = np.asarray(sample[key]), value.numpy()
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), key
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("robot") / "data")[0]


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
@pytest.mark.parametrize("episodes", [None, [3, 1]])
@pytest.mark.parametrize("deltas", [None, DELTAS], ids=["alone", "windows"])
def test_samples_are_those_of_lerobot(tmp_path, codec, episodes, deltas):
    root, _ = write_dataset(tmp_path / "data", codec=codec)
    reference = lerobot.LeRobotDataset("own/data", root=root, episodes=episodes, delta_timestamps=deltas)
    data = clips.LeRobot(root, deltas, episodes=episodes)
    assert len(data) == len(reference)
    for row in range(len(data)):
        assert_same(data[row], reference[row])


def test_batches_are_those_of_torch_over_lerobot(root):
    reference = lerobot.LeRobotDataset("own/data", root=root, delta_timestamps=DELTAS)
    wanted = torch.utils.data.DataLoader(reference, batch_size=8)
    for batch, other in zip(DataLoader(clips.LeRobot(root, DELTAS), batch_size=8, num_workers=2), wanted, strict=True):
        assert_same(batch, other)


def test_a_dataset_that_lerobot_wrote_is_read(tmp_path):
    features = {
        TOP: {"dtype": "video", "shape": (48, 64, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "contacts": {"dtype": "float32", "shape": (2, 3), "names": None},
        "reward": {"dtype": "float64", "shape": (1,), "names": None},
    }
    made = lerobot.LeRobotDataset.create("own/made", fps=10, features=features, root=tmp_path / "made")
    for episode, length in enumerate((9, 4, 6)):
        for n, picture in enumerate(pictures(length, 64, 48, seed=episode)):
            values = {"action": np.full(2, n, np.float32), "contacts": np.full((2, 3), episode, np.float32)}
            made.add_frame({TOP: picture, **values, "reward": np.array([n / 7]), "task": f"task {episode % 2}"})
        made.save_episode()
    made.finalize()
    deltas = {TOP: [-0.1, 0.0], "action": [0.0, 0.1], "contacts": [0.0, 0.2], "reward": [0.1]}
    reference = lerobot.LeRobotDataset("own/made", root=tmp_path / "made", delta_timestamps=deltas)
    data = clips.LeRobot(tmp_path / "made", deltas)
    assert len(data) == len(reference) == 19
    for row in range(len(data)):
        assert_same(data[row], reference[row])
    for name, values in reference.meta.stats["action"].items():
        np.testing.assert_array_equal(data.stats["action"][name], values)

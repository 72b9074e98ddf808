"""A small policy learns to imitate recorded actions: python examples/robot_policy.py [--workers 2] [--steps 120].

The program first writes a dataset of LeRobot's format v3: a hand moves to a ball, seen by two cameras. The policy gets
the last two frames of both cameras and the position of the hand, and predicts the next four actions.
"""

import argparse
import json
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from slipring import clips
from slipring.torch import DataLoader

FPS, SIZE, EPISODES, LENGTH = 10, 48, 12, 40
CAMERAS = "observation.images.top", "observation.images.mirrored"
ACTIONS = 4


# ---- the dataset


def recorded(rng):
    """Return the positions of the hand and of the ball, and the actions, of one episode: frames × 2."""
    hand, ball = rng.uniform(0.1, 0.9, (2, 2))
    hands, actions = [], []
    for _ in range(LENGTH):
        action = 0.15 * (ball - hand)
        hands.append(hand)
        actions.append(action)
        hand = hand + action + rng.normal(0, 0.004, 2)
    return np.array(hands), np.tile(ball, (LENGTH, 1)), np.array(actions)


def picture(hand, ball, mirrored):
    """Return what a camera sees: a red hand and a green ball."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    seen = np.full((SIZE, SIZE, 3), 40, np.uint8)
    for (at_x, at_y), color in ((ball, (40, 220, 40)), (hand, (220, 40, 40))):
        seen[(x - at_x) ** 2 + (y - at_y) ** 2 < 0.008] = color
    return seen[:, ::-1] if mirrored else seen


def write_video(path, pictures):
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "18", "preset": "veryfast"})
        stream.width = stream.height = SIZE
        stream.codec_context.gop_size, stream.codec_context.thread_count = 10, 1
        for number, pixels in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_table(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_dataset(root):
    rng = np.random.default_rng(0)
    hands, balls, actions = (np.concatenate(parts) for parts in zip(*(recorded(rng) for _ in range(EPISODES))))
    episode, frame = np.divmod(np.arange(EPISODES * LENGTH), LENGTH)
    columns = {
        "observation.state": list(hands.astype(np.float32)),
        "action": list(actions.astype(np.float32)),
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(len(frame)),
        "task_index": np.zeros_like(frame),
    }
    write_table(root / "data/chunk-000/file-000.parquet", columns)
    first = np.arange(EPISODES) * LENGTH
    files = {"chunk_index": np.zeros(EPISODES, int), "file_index": np.zeros(EPISODES, int)}
    episodes = {"episode_index": np.arange(EPISODES), "dataset_from_index": first, "dataset_to_index": first + LENGTH}
    episodes.update({f"data/{name}": values for name, values in files.items()})
    for mirrored, key in enumerate(CAMERAS):
        pictures = (picture(hand, ball, mirrored) for hand, ball in zip(hands, balls))
        write_video(root / f"videos/{key}/chunk-000/file-000.mp4", pictures)
        episodes.update({f"videos/{key}/{name}": values for name, values in files.items()})
        episodes[f"videos/{key}/from_timestamp"] = first / FPS
    write_table(root / "meta/episodes/chunk-000/file-000.parquet", episodes)
    write_table(root / "meta/tasks.parquet", {"task_index": [0], "task": ["move the hand to the ball"]})
    features = {key: {"dtype": "video", "shape": [SIZE, SIZE, 3]} for key in CAMERAS}
    for name in columns:
        vector = name in ("observation.state", "action")
        dtype = "float32" if vector or name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [2 if vector else 1]}
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "total_episodes": EPISODES,
        "features": features,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    stats = {"action": {"mean": actions.mean(0).tolist(), "std": actions.std(0).tolist()}}
    (root / "meta/stats.json").write_text(json.dumps(stats))


# ---- the policy


class Policy(nn.Module):
    def __init__(self, stats):
        super().__init__()
        self.mean, self.std = (torch.tensor(stats[name], dtype=torch.float32) for name in ("mean", "std"))
        channels = 3 * 2 * len(CAMERAS)  # two frames of each camera
        self.eye = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(64 + 2, 64), nn.ReLU(), nn.Linear(64, 2 * ACTIONS))

    def forward(self, batch):
        seen = self.eye(torch.cat([batch[key].flatten(1, 2) for key in CAMERAS], 1))
        made = self.head(torch.cat([seen, batch["observation.state"]], 1))
        return made.reshape(-1, ACTIONS, 2)

    def loss(self, batch):
        wrong = (self(batch) - (batch["action"] - self.mean) / self.std) ** 2
        return wrong[~batch["action_is_pad"]].mean()


def main(args):
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder))
        times = {key: [-1 / FPS, 0.0] for key in CAMERAS}
        times["action"] = [n / FPS for n in range(ACTIONS)]
        data = clips.LeRobot(folder, times, cache="64MiB")
        torch.manual_seed(0)
        policy = Policy(data.stats["action"])
        loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True, num_workers=args.workers)
        optimizer, step = None, 0
        while step < args.steps:
            for batch in loader:
                loss = policy.loss(batch)
                optimizer = optimizer or torch.optim.Adam(policy.parameters(), 1e-3)  # after the first forward pass
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 30 == 1 or step == args.steps:
                    print(f"step {step}: loss {loss.item():.4f}")
                if step == args.steps:
                    break
        loader.close()
        print(f"learned: {batch['task'][0]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    main(parser.parse_args())

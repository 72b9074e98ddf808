"""The check of a fresh installation: `make check-wheel` runs it with only slipring, numpy and Pillow installed."""

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import zlib

import numpy as np
from PIL import Image

import slipring
from slipring import images


class Rows:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {
            "x": np.full(1000, i, np.float32),
            "i": i,
            "text": f"row {i}",
            "draw": slipring.rng().random(),
        }


class Pictures:
    def __len__(self):
        return 12

    def __getitem__(self, i):
        file = io.BytesIO()
        y, x = np.mgrid[:120, :160]
        Image.fromarray(np.stack([y * 2, x, (x + y + i) % 256], -1).astype(np.uint8)).save(file, "JPEG")
        return file.getvalue(), i


def batches(**options):
    with slipring.Loader(Rows(), 8, shuffle=True, seed=1, **options) as loader:
        return [(b["x"][:, 0].tolist(), b["i"].tolist(), list(b["text"]), b["draw"].tolist()) for b in loader]


def same_batches_from_any_worker():
    plain = batches()
    assert len(plain) == 5 and sorted(i for b in plain for i in b[1]) == list(range(40))
    for method in ("fork", "spawn", "thread"):
        assert batches(num_workers=2, workers=slipring.Workers(start_method=method)) == plain, method


def respawn_after_a_kill():
    class Mortal(Rows):
        def __getitem__(self, i):
            if i == 20 and slipring.get_worker_info().id == 0 and not os.path.exists(killed):
                open(killed, "w").close()
                os.kill(os.getpid(), 9)
            return i

    workers = slipring.Workers(start_method="fork", on_death="respawn")
    with tempfile.TemporaryDirectory() as folder:
        killed = os.path.join(folder, "killed")
        # Batches go to the workers in turn, so the third one is the first worker's.
        with slipring.Loader(Mortal(), 8, num_workers=2, workers=workers, rng="worker") as loader:
            assert [b.tolist() for b in loader] == [list(range(8 * n, 8 * n + 8)) for n in range(5)]
            assert loader.stats().respawns == 1


def put(queue):
    for n in range(20):
        queue.put({"n": n, "x": np.full(500, n)})


def a_queue_between_processes():
    queue = slipring.Queue(4)
    producer = multiprocessing.Process(target=put, args=(queue,))
    producer.start()
    for n in range(20):
        got = queue.get(timeout=60)
        assert got["n"] == n and (got["x"] == n).all()
    producer.join()
    del got
    queue.close()


def pictures():
    data = images.Bytes(Pictures(), images.RandomResizedCrop(48))
    with slipring.Loader(data, 4, num_workers=2, seed=0) as loader:
        return zlib.crc32(np.concatenate([np.array(p) for p, _ in loader]))


def the_same_pictures_by_every_kernel():
    if os.uname().machine == "aarch64":
        wanted = "neon"
    else:
        with open("/proc/cpuinfo") as file:
            wanted = "avx2" if " avx2 " in file.read().replace("\n", " ") else "c"
    assert images.backend().kernels == wanted, images.backend()
    assert images.backend().jpeg.startswith("libjpeg-turbo"), images.backend()
    plain = {**os.environ, "SLIPRING_IMAGES_KERNELS": "c"}
    other = subprocess.run(
        [sys.executable, __file__, "pictures"], env=plain, capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == pictures()


if __name__ == "__main__":
    if sys.argv[1:] == ["pictures"]:
        print(pictures())
    else:
        same_batches_from_any_worker()
        respawn_after_a_kill()
        a_queue_between_processes()
        the_same_pictures_by_every_kernel()

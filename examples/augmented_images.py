"""Random crops of images, written straight into the batch: python examples/augmented_images.py [workers]."""

import sys

import numpy as np

import slipring

SIZE = 224


class RandomCrops:
    """A pool of images from which `fetch_into` cuts random crops; a real one would decode files."""

    def __init__(self, n=64):
        self.images = np.random.default_rng(0).integers(0, 255, (n, 256, 256, 3), np.uint8)

    def __len__(self):
        return 10 * len(self.images)

    def fetch_into(self, indices, empty):
        batch = empty((len(indices), SIZE, SIZE, 3), np.uint8)  # this array is in the slot already
        for row, i in enumerate(indices):
            y, x = slipring.rng().integers(0, 256 - SIZE, 2)
            batch[row] = self.images[i % len(self.images), y : y + SIZE, x : x + SIZE]
        return batch, np.array(indices) % 10


def main(workers):
    with slipring.Loader(RandomCrops(), batch_size=32, shuffle=True, num_workers=workers, seed=1) as loader:
        for epoch in range(2):
            total = sum(int(images.sum()) for images, labels in loader)
            print(f"epoch {epoch}: {len(loader)} batches, sum {total}")  # the same for any number of workers
        stats = loader.stats()
        print(f"{stats.bytes / 1e6:.0f} MB, {stats.copied_batches} batches copied")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)

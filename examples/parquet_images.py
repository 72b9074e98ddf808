"""JPEG files in a Parquet table, decoded by the workers: python examples/parquet_images.py [workers]."""

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import slipring
from slipring.arrow import TableDataset

SIZE = 64


def write_table(path, n=200):
    """A table as Hugging Face writes them: image (bytes, path) and label."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (SIZE, SIZE, 3), np.uint8)).save(file, "jpeg")
        rows.append({"image": {"bytes": file.getvalue(), "path": f"{i:04}.jpeg"}, "label": i % 10})
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)


def decode(row):
    image = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
    return {"image": np.asarray(image), "label": row["label"]}


def main(workers):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.parquet")
        write_table(path)
        dataset = TableDataset(path, columns=["image", "label"], decode=decode)
        with slipring.Loader(dataset, batch_size=32, shuffle=True, num_workers=workers, seed=1) as loader:
            for batch in loader:
                print(batch["image"].shape, int(batch["image"].sum()), int(batch["label"].sum()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)

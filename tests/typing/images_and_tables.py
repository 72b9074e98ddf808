"""Datasets of images and of tables, and streams, for type checkers. (This code never runs.)"""

# pyarrow has no types:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from slipring import Loader, Memory, Storage, StringList, Workers, arrow, images, stream
from slipring.streams import Stream

crop = images.RandomResizedCrop(224, scale=(0.5, 1), flip=0)
folder = images.Folder(Path("train"), crop, dtype=np.float32, mean=(0.5, 0.5, 0.5), std=[1, 1, 1])
assert_type(folder[0], tuple[Any, Any])
assert_type(len(folder), int)
assert_type(folder.class_to_idx, dict[str, int])
assert_type(folder.targets, NDArray[np.int64])
images.Tar(["a.tar"], [images.Resize(256), images.CenterCrop((224, 192))], index="sidecar", on_error="skip")
assert_type(images.Tar("a.tar").keys, StringList)
images.Parquet("a.parquet", target=["x", "y"], exif=True)
images.Bytes([(b"", 1)], layout="NCHW")
assert_type(images.size(b""), tuple[int, int])
assert_type(folder.crop_spec(0, 7), images.CropSpec)
images.Resize(224, interpolation="nearest")
assert_type(images.backend().library, str | None)
images.decode_into(bytearray(), np.empty((2, 3, 3), np.uint8), box=(0, 0, 2, 3))
assert_type(Loader(folder, 256), Loader[tuple[Any, Any]])

images.Folder("train", layout="CHW")  # type: ignore[arg-type]
images.Folder("train", on_errors="skip")  # type: ignore[call-arg]
images.Resize(224, interpolation="lanczos")  # type: ignore[arg-type]
images.decode_into("a.jpg", np.empty((2, 3, 3), np.uint8))  # type: ignore[arg-type]
floats: NDArray[np.float32] = np.empty((2, 3, 3), np.float32)
images.decode_into(b"", floats)  # type: ignore[arg-type]

rows = arrow.TableDataset(
    [Path("a.parquet"), "b.arrow"], columns=["x"], returns="record_batch", fill_null={"x": 0}, null_mask=["x"]
)
assert_type(len(rows), int)
assert_type(rows.paths, list[str])
Loader(rows, 8, collate_fn=arrow.collate)
arrow.TableDataset("a.parquet", returns="batches")  # type: ignore[arg-type]

storage = Storage(storage_options={"key": "x"}, timeout=30, disk_cache=Path("kept"), disk_cache_bytes="1GiB")
assert_type(storage.timeout, float)
images.Tar("s3://bucket/a.tar", storage=storage, index=Path("indices"))
arrow.TableDataset("https://example.com/a.parquet", storage=storage)
Storage(retries=3)  # type: ignore[call-arg]
images.Parquet("a.parquet", storage={"key": "x"})  # type: ignore[arg-type]

numbers = stream([{"x": np.arange(3)}], 2, shuffle_buffer=4, columns=("x",), memory=Memory(slots=8), fill_null={"x": 0})
assert_type(numbers, Loader[dict[str, Any]])
assert_type(next(iter(numbers)), dict[str, Any])
numbers.load_state_dict(numbers.state_dict())
stream(lambda worker, num_workers: [{"x": [worker]}], 2, num_workers=2, workers=Workers(start_method="thread"))
assert_type(Loader(Stream([], 2), None), Loader[Any])
stream([], 2, shuffle=True)  # type: ignore[call-arg]
stream([], 2, workers=Workers(start_method="threads"))  # type: ignore[arg-type]

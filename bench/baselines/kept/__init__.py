"""The baselines of workload (g), the second epoch. They are like those of (f). Baselines with a cache also have

``counts()``
    (hits, misses) so far, of all processes of the loader; None without lookups.
"""

from __future__ import annotations

from bench.baselines.baseline import Baseline

_IMAGES = "pip install -r bench/requirements-images.txt"


def _ours(key: str, label: str, **options: object) -> Baseline:
    return Baseline(
        key, f"slipring, {label}", "kept.slipring_kept", ("slipring.images",), ("slipring",), options=options
    )


KEPT: dict[str, Baseline] = {
    baseline.key: baseline
    for baseline in (
        _ours("kept_none", "no cache", share=0.0),
        _ours("kept_25", "room for 25 %", share=0.25),
        _ours("kept_50", "room for 50 %", share=0.5),
        _ours("kept_all", "room for 100 %", share=1.0),
        _ours("kept_side", "100 %, side=256", share=1.0, side=256),
        _ours("kept_encoded", "100 %, encoded", share=1.0, what="encoded"),
        Baseline(
            "kept_memmap",
            "FFCV raw, emulated; torch",
            "kept.memmap_torch",
            ("torch.utils.data", "cv2"),
            ("torch", "opencv-python-headless"),
            remedy=_IMAGES,
        ),
        Baseline(
            "kept_memmap_ours",
            "FFCV raw, emulated; slipring",
            "kept.memmap_slipring",
            ("slipring", "cv2"),
            ("slipring", "opencv-python-headless"),
            remedy=_IMAGES,
        ),
        Baseline(
            "kept_dict",
            "torch, a dict per worker",
            "kept.torch_dict",
            ("torch.utils.data",),
            ("torch",),
        ),
        Baseline(
            "kept_ffcv",
            "FFCV, raw",
            "kept.ffcv_raw",
            ("ffcv",),
            ("ffcv",),
            remedy="it is compiled against OpenCV's and libturbojpeg's headers; another row emulates its way",
        ),
        Baseline(
            "kept_dali",
            "DALI on the CPU",
            "images.dali_cpu",
            ("nvidia.dali",),
            ("nvidia-dali-cuda120",),
            remedy="pip install -r bench/requirements-dali.txt",
        ),
        Baseline(
            "kept_litdata",
            "LitData, raw",
            "kept.litdata_raw",
            ("litdata",),
            ("litdata",),
            remedy="pip install litdata",
        ),
    )
}

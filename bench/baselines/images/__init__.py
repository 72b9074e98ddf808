"""The baselines of workload (f), images end to end. In addition to ``batches()``, each has its decoder.

``batches(workload, dataset, workers)``
    A generator of endless batches (images, and labels if it has them) of random crops.
``decoder()``
    A `bench.decoders.Decoder` that decodes a file as the baseline does, for a comparison with Pillow.
"""

from __future__ import annotations

from bench.baselines.baseline import Baseline

_INSTALL = "pip install -r bench/requirements-{}.txt"
_IMAGES = _INSTALL.format("images")

IMAGES: dict[str, Baseline] = {
    baseline.key: baseline
    for baseline in (
        Baseline("images", "slipring.images", "images.slipring_images", ("slipring.images",), ("slipring",)),
        Baseline(
            "images_threads",
            "slipring.images, threads",
            "images.slipring_threads",
            ("slipring.images",),
            ("slipring",),
        ),
        Baseline("images_alone", "decoding alone, no loader", "images.alone", ("slipring.images",), ("slipring",)),
        Baseline("images_torch", "torch + Pillow", "images.torch_pillow", ("torch.utils.data",), ("torch",)),
        Baseline(
            "images_simplejpeg",
            "torch + simplejpeg + OpenCV",
            "images.torch_simplejpeg",
            ("torch.utils.data", "simplejpeg", "cv2"),
            ("simplejpeg", "opencv-python-headless"),
            remedy=_IMAGES,
        ),
        Baseline(
            "images_opencv",
            "torch + OpenCV",
            "images.torch_opencv",
            ("torch.utils.data", "cv2"),
            ("opencv-python-headless",),
            remedy=_IMAGES,
        ),
        Baseline(
            "images_torchvision",
            "torchvision",
            "images.torchvision_folder",
            ("torchvision.io", "torchvision.transforms.v2"),
            ("torchvision",),
            remedy="its C library wants the torch that it was compiled for",
        ),
        Baseline(
            "images_webdataset",
            "webdataset + Pillow",
            "images.webdataset_pillow",
            ("webdataset",),
            ("webdataset",),
        ),
        Baseline(
            "images_spdl",
            "SPDL, FFmpeg",
            "images.spdl_ffmpeg",
            ("spdl.pipeline", "spdl.io.lib._spdl_ffmpeg8"),
            ("spdl_io", "av"),
            remedy=_IMAGES,
            libraries_of="av",
        ),
        Baseline(
            "images_dali",
            "DALI on the CPU",
            "images.dali_cpu",
            ("nvidia.dali",),
            ("nvidia-dali-cuda120",),
            remedy=_INSTALL.format("dali"),
        ),
        Baseline(
            "images_turboloader",
            "TurboLoader",
            "images.turboloader_tar",
            ("turboloader",),
            ("turboloader",),
            remedy=_IMAGES,
            whole=True,
        ),
        Baseline(
            "images_ffcv",
            "FFCV",
            "images.ffcv_beton",
            ("ffcv",),
            ("ffcv",),
            remedy="it is compiled against OpenCV's and libturbojpeg's headers; the next row emulates its way",
        ),
        Baseline(
            "images_ffcv_way",
            "FFCV's way, emulated",
            "images.ffcv_emulated",
            ("simplejpeg", "cv2"),
            ("simplejpeg", "opencv-python-headless"),
            remedy=_IMAGES,
        ),
    )
}

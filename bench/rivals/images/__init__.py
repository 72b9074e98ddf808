"""The rivals of question (f), images end to end. In addition to ``batches()``, each has its decoder.

``batches(question, dataset, workers)``
    A generator of endless batches (images, and labels if it has them) of random crops.
``decoder()``
    A `bench.decoders.Decoder` that decodes a file as the rival does, for a comparison with Pillow.
"""

from __future__ import annotations

from bench.rivals.rival import Rival

_INSTALL = "pip install -r bench/requirements-{}.txt"
_IMAGES = _INSTALL.format("images")

IMAGES: dict[str, Rival] = {
    rival.key: rival
    for rival in (
        Rival("images", "slipring.images", "images.slipring_images", ("slipring.images",), ("slipring",)),
        Rival(
            "images_threads",
            "slipring.images, threads",
            "images.slipring_threads",
            ("slipring.images",),
            ("slipring",),
        ),
        Rival("images_alone", "decoding alone, no loader", "images.alone", ("slipring.images",), ("slipring",)),
        Rival("images_torch", "torch + Pillow", "images.torch_pillow", ("torch.utils.data",), ("torch",)),
        Rival(
            "images_simplejpeg",
            "torch + simplejpeg + OpenCV",
            "images.torch_simplejpeg",
            ("torch.utils.data", "simplejpeg", "cv2"),
            ("simplejpeg", "opencv-python-headless"),
            remedy=_IMAGES,
        ),
        Rival(
            "images_opencv",
            "torch + OpenCV",
            "images.torch_opencv",
            ("torch.utils.data", "cv2"),
            ("opencv-python-headless",),
            remedy=_IMAGES,
        ),
        Rival(
            "images_torchvision",
            "torchvision",
            "images.torchvision_folder",
            ("torchvision.io", "torchvision.transforms.v2"),
            ("torchvision",),
            remedy="its C library wants the torch that it was compiled for",
        ),
        Rival(
            "images_webdataset",
            "webdataset + Pillow",
            "images.webdataset_pillow",
            ("webdataset",),
            ("webdataset",),
        ),
        Rival(
            "images_spdl",
            "SPDL, FFmpeg",
            "images.spdl_ffmpeg",
            ("spdl.pipeline", "spdl.io.lib._spdl_ffmpeg8"),
            ("spdl_io", "av"),
            remedy=_IMAGES,
            libraries_of="av",
        ),
        Rival(
            "images_dali",
            "DALI on the CPU",
            "images.dali_cpu",
            ("nvidia.dali",),
            ("nvidia-dali-cuda120",),
            remedy=_INSTALL.format("dali"),
        ),
        Rival(
            "images_turboloader",
            "TurboLoader",
            "images.turboloader_tar",
            ("turboloader",),
            ("turboloader",),
            remedy=_IMAGES,
            whole=True,
        ),
        Rival(
            "images_ffcv",
            "FFCV",
            "images.ffcv_beton",
            ("ffcv",),
            ("ffcv",),
            remedy="it is compiled against OpenCV's and libturbojpeg's headers; the next row emulates its way",
        ),
        Rival(
            "images_ffcv_way",
            "FFCV's way, emulated",
            "images.ffcv_emulated",
            ("simplejpeg", "cv2"),
            ("simplejpeg", "opencv-python-headless"),
            remedy=_IMAGES,
        ),
    )
}

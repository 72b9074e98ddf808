"""The libjpeg that decodes images, found at run time: a machine with only Python has no libjpeg to link to."""

import dataclasses
import glob
import os

from slipring._core.ring.process import ForkLock
from slipring.images import _decode

_lock = ForkLock()  # a signal handler may decode an image while the first one is being decoded
_chosen = None


@dataclasses.dataclass(frozen=True)
class Backend:
    """The libraries that decode images, and the reason for the choice.

    Attributes
    ----------
    jpeg : str
        "libjpeg-turbo" with its version, or "Pillow" if no library can be used.
    library : str or None
        The file of the library.
    reason : str
        Why this library was chosen; for Pillow, the libraries that were refused.
    kernels : str
        The inner loops of resizing: "avx2", "neon", or "c".
    others : str
        The decoder of all other formats.

    Examples
    --------
    >>> from slipring import images
    >>> chosen = images.backend()
    >>> print(chosen)  # doctest: +ELLIPSIS
    JPEG: ...
    """

    jpeg: str
    library: str | None
    reason: str
    kernels: str
    others: str

    def __str__(self) -> str:
        where = f" ({self.library})" if self.library else ""
        return f"JPEG: {self.jpeg}{where}, {self.reason}; resize: {self.kernels}; other formats: {self.others}"


def pillow():
    """Return the module PIL.Image; raise ImportError if Pillow is not installed; the error says how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("slipring.images needs Pillow: pip install 'slipring[images]'") from error
    return Image


def _candidates():
    """Yield (path, reason for this one), best first."""
    import PIL
    from PIL import _imaging  # noqa: F401 - loads the library that it is linked to

    beside = os.path.join(os.path.dirname(os.path.dirname(PIL.__file__)), "pillow.libs")
    for path in sorted(glob.glob(os.path.join(beside, "libjpeg*.so*"))):
        yield path, "Pillow's own, so its pixels are Pillow's"
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps if "libjpeg" in line}
    for path in sorted(mapped):
        yield path, "the one that Pillow is linked to, so its pixels are Pillow's"
    yield "libjpeg.so.62", "the system's"


def _choose():
    Image = pillow()
    from PIL import features

    others = f"Pillow {Image.__version__}"
    wanted = os.environ.get("SLIPRING_IMAGES_JPEG")
    refused = []
    if wanted == "pillow":
        candidates = []
        refused.append("SLIPRING_IMAGES_JPEG=pillow")
    elif wanted:
        candidates = [(wanted, "named by SLIPRING_IMAGES_JPEG")]
    else:
        candidates = _candidates()
    for path, reason in candidates:
        why = _decode.bind(path)
        if why is None:
            version = features.version_feature("libjpeg_turbo") if "Pillow" in reason else None
            name = f"libjpeg-turbo {version}" if version else "libjpeg-turbo"
            return Backend(name, path, reason, _decode.kernels(), others)
        refused.append(f"{path}: {why}")
    return Backend(others, None, "; ".join(refused), _decode.kernels(), others)


def backend() -> Backend:
    """Return the libraries that decode images in this process, and the reason for the choice.

    Returns
    -------
    Backend

    Notes
    -----
    The first call, or the first image, makes the choice, in this order: the libjpeg-turbo of Pillow's wheel, the
    library that Pillow is linked to, the system's. The environment variable ``SLIPRING_IMAGES_JPEG`` names another
    library, or "pillow" for none.
    """
    global _chosen
    if _chosen is None:
        with _lock.here():
            if _chosen is None:
                _chosen = _choose()
    return _chosen

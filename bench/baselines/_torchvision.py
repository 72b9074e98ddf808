"""torchvision, also where its C library was compiled for another torch: import its modules from here."""

from __future__ import annotations

import torch

try:
    from torchvision import datasets, io, tv_tensors
    from torchvision.transforms import v2
except RuntimeError:  # an operator does not exist
    # torchvision's import needs three operators of its C library, which a library for another torch does not define.
    # The transforms call none of them, so declarations suffice.
    _library = torch.library.Library("torchvision", "DEF")  # the declarations end with this object
    for _operator in (
        "nms(Tensor dets, Tensor scores, float threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float threshold) -> Tensor",
        "roi_align(Tensor input, Tensor rois, float scale, int height, int width, int ratio, bool aligned) -> Tensor",
    ):
        _library.define(_operator)
    from torchvision import datasets, io, tv_tensors
    from torchvision.transforms import v2

__all__ = ["datasets", "io", "tv_tensors", "v2"]

"""The policies of AutoAugment, as the paper and torchvision list them."""

from __future__ import annotations

Operation = tuple[str, float, int]  # name, probability, strength

# A line for each pair of operations, with probability and strength, which some do not have.
_IMAGENET = """
Posterize 0.4 8, Rotate 0.6 9
Solarize 0.6 5, AutoContrast 0.6
Equalize 0.8, Equalize 0.6
Posterize 0.6 7, Posterize 0.6 6
Equalize 0.4, Solarize 0.2 4
Equalize 0.4, Rotate 0.8 8
Solarize 0.6 3, Equalize 0.6
Posterize 0.8 5, Equalize 1
Rotate 0.2 3, Solarize 0.6 8
Equalize 0.6, Posterize 0.4 6
Rotate 0.8 8, Color 0.4 0
Rotate 0.4 9, Equalize 0.6
Equalize 0, Equalize 0.8
Invert 0.6, Equalize 1
Color 0.6 4, Contrast 1 8
Rotate 0.8 8, Color 1 2
Color 0.8 8, Solarize 0.8 7
Sharpness 0.4 7, Invert 0.6
ShearX 0.6 5, Equalize 1
Color 0.4 0, Equalize 0.6
Equalize 0.4, Solarize 0.2 4
Solarize 0.6 5, AutoContrast 0.6
Invert 0.6, Equalize 1
Color 0.6 4, Contrast 1 8
Equalize 0.8, Equalize 0.6
"""

_CIFAR10 = """
Invert 0.1, Contrast 0.2 6
Rotate 0.7 2, TranslateX 0.3 9
Sharpness 0.8 1, Sharpness 0.9 3
ShearY 0.5 8, TranslateY 0.7 9
AutoContrast 0.5, Equalize 0.9
ShearY 0.2 7, Posterize 0.3 7
Color 0.4 3, Brightness 0.6 7
Sharpness 0.3 9, Brightness 0.7 9
Equalize 0.6, Equalize 0.5
Contrast 0.6 7, Sharpness 0.6 5
Color 0.7 7, TranslateX 0.5 8
Equalize 0.3, AutoContrast 0.4
TranslateY 0.4 3, Sharpness 0.2 6
Brightness 0.9 6, Color 0.2 8
Solarize 0.5 2, Invert 0
Equalize 0.2, AutoContrast 0.6
Equalize 0.2, Equalize 0.6
Color 0.9 9, Equalize 0.6
AutoContrast 0.8, Solarize 0.2 8
Brightness 0.1 3, Color 0.7 0
Solarize 0.4 5, AutoContrast 0.9
TranslateY 0.9 9, TranslateY 0.7 9
AutoContrast 0.9, Solarize 0.8 3
Equalize 0.8, Invert 0.1
TranslateY 0.7 9, AutoContrast 0.9
"""

_SVHN = """
ShearX 0.9 4, Invert 0.2
ShearY 0.9 8, Invert 0.7
Equalize 0.6, Solarize 0.6 6
Invert 0.9, Equalize 0.6
Equalize 0.6, Rotate 0.9 3
ShearX 0.9 4, AutoContrast 0.8
ShearY 0.9 8, Invert 0.4
ShearY 0.9 5, Solarize 0.2 6
Invert 0.9, AutoContrast 0.8
Equalize 0.6, Rotate 0.9 3
ShearX 0.9 4, Solarize 0.3 3
ShearY 0.8 8, Invert 0.7
Equalize 0.9, TranslateY 0.6 6
Invert 0.9, Equalize 0.6
Contrast 0.3 3, Rotate 0.8 4
Invert 0.8, TranslateY 0 2
ShearY 0.7 6, Solarize 0.4 8
Invert 0.6, Rotate 0.8 4
ShearY 0.3 7, TranslateX 0.9 3
ShearX 0.1 6, Invert 0.6
Solarize 0.7 2, TranslateY 0.6 7
ShearY 0.8 4, Invert 0.8
ShearX 0.7 9, TranslateY 0.8 3
ShearY 0.8 5, AutoContrast 0.7
ShearX 0.7 2, Invert 0.1
"""

# timm's own, in which strengths are levels from 0 to 10.
_TIMM_ORIGINAL = """
PosterizeOriginal 0.4 8, Rotate 0.6 9
Solarize 0.6 5, AutoContrast 0.6 5
Equalize 0.8 8, Equalize 0.6 3
PosterizeOriginal 0.6 7, PosterizeOriginal 0.6 6
Equalize 0.4 7, Solarize 0.2 4
Equalize 0.4 4, Rotate 0.8 8
Solarize 0.6 3, Equalize 0.6 7
PosterizeOriginal 0.8 5, Equalize 1 2
Rotate 0.2 3, Solarize 0.6 8
Equalize 0.6 8, PosterizeOriginal 0.4 6
Rotate 0.8 8, Color 0.4 0
Rotate 0.4 9, Equalize 0.6 2
Equalize 0 7, Equalize 0.8 8
Invert 0.6 4, Equalize 1 8
Color 0.6 4, Contrast 1 8
Rotate 0.8 8, Color 1 2
Color 0.8 8, Solarize 0.8 7
Sharpness 0.4 7, Invert 0.6 8
ShearX 0.6 5, Equalize 1 9
Color 0.4 0, Equalize 0.6 3
Equalize 0.4 7, Solarize 0.2 4
Solarize 0.6 5, AutoContrast 0.6 5
Invert 0.6 4, Equalize 1 8
Color 0.6 4, Contrast 1 8
Equalize 0.8 8, Equalize 0.6 3
"""

_TIMM_V0 = """
Equalize 0.8 1, ShearY 0.8 4
Color 0.4 9, Equalize 0.6 3
Color 0.4 1, Rotate 0.6 8
Solarize 0.8 3, Equalize 0.4 7
Solarize 0.4 2, Solarize 0.6 2
Color 0.2 0, Equalize 0.8 8
Equalize 0.4 8, SolarizeAdd 0.8 3
ShearX 0.2 9, Rotate 0.6 8
Color 0.6 1, Equalize 1 2
Invert 0.4 9, Rotate 0.6 0
Equalize 1 9, ShearY 0.6 3
Color 0.4 7, Equalize 0.6 0
Posterize 0.4 6, AutoContrast 0.4 7
Solarize 0.6 8, Color 0.6 9
Solarize 0.2 4, Rotate 0.8 9
Rotate 1 7, TranslateYRel 0.8 9
ShearX 0 0, Solarize 0.8 4
ShearY 0.8 0, Color 0.6 4
Color 1 0, Rotate 0.6 2
Equalize 0.8 4, Equalize 0 8
Equalize 1 4, AutoContrast 0.6 2
ShearY 0.4 7, SolarizeAdd 0.6 7
Posterize 0.8 2, Solarize 0.6 10
Solarize 0.6 8, Equalize 0.6 1
Color 0.8 6, Rotate 0.4 5
"""

_TIMM_3A = """
Solarize 1 5
Desaturate 1 10
GaussianBlurRand 1 10
"""


def _lines(table: str) -> list[list[Operation]]:
    """Return the operations of each line."""
    return [[_operation(text) for text in line.split(", ")] for line in table.strip().splitlines()]


def _operation(text):
    name, probability, *strength = text.split()
    return name, float(probability), int(strength[0]) if strength else 0


AUTO_AUGMENT = {"imagenet": _lines(_IMAGENET), "cifar10": _lines(_CIFAR10), "svhn": _lines(_SVHN)}
TIMM = {
    "original": _lines(_TIMM_ORIGINAL),
    "originalr": _lines(_TIMM_ORIGINAL.replace("PosterizeOriginal", "PosterizeIncreasing")),
    "v0": _lines(_TIMM_V0),
    "v0r": _lines(_TIMM_V0.replace("Posterize ", "PosterizeIncreasing ")),
    "3a": _lines(_TIMM_3A),
}

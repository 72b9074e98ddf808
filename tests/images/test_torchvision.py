"""ImageFolder and Compose, translated; where torchvision does not load, classes of the same names stand in."""

import enum
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from slipring import images
from tests.images.pictures import encoded, error, pixels


def loads():
    """Whether torchvision can be imported: some of its wheels want libraries that are not there."""
    if importlib.util.find_spec("torchvision") is None:
        return False
    return subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0


class Mode(enum.Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


def like(name, **attributes):
    return type(name, (), attributes)()


def resize(size, interpolation=Mode.BILINEAR, max_size=None):
    return like("Resize", size=size, interpolation=interpolation, max_size=max_size)


def crop(size=16, scale=(0.08, 1.0), ratio=(0.75, 4 / 3), interpolation=Mode.BILINEAR):
    return like("RandomResizedCrop", size=(size, size), scale=scale, ratio=ratio, interpolation=interpolation)


def compose(*steps):
    return like("Compose", transforms=list(steps))


CENTER = like("CenterCrop", size=(14, 14))
FLIP = like("RandomHorizontalFlip", p=0.5)
TO_TENSOR, PIL_TO_TENSOR, TO_IMAGE = like("ToTensor"), like("PILToTensor"), like("ToImage")
NORMALIZE = like("Normalize", mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])


def default_loader(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


@pytest.fixture
def root(tmp_path):
    for number in range(6):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(encoded(pixels(30, 40, number)))
    return tmp_path


def folder(root, transform, loader=default_loader, target_transform=None):
    ours = images.Folder(root)
    return like(
        "ImageFolder",
        root=str(root),
        classes=ours.classes,
        class_to_idx=ours.class_to_idx,
        samples=ours.samples,
        loader=staticmethod(loader),
        transform=transform,
        target_transform=None if target_transform is None else staticmethod(target_transform),
    )


def test_the_recipe_of_validation_gives_the_same_values(root):
    data = images.from_torchvision(folder(root, compose(resize(20), CENTER, TO_TENSOR, NORMALIZE)))
    assert len(data) == 6 and data.classes == ["class0", "class1"]
    image, label = data[4]
    assert image.shape == (3, 14, 14) and image.dtype == np.float32 and label == 1
    picture = Image.open(data.samples[4][0]).convert("RGB").resize((26, 20), Image.Resampling.BILINEAR)
    want = np.asarray(picture.crop((6, 3, 20, 17)))
    levels = (image.transpose(1, 2, 0) * [0.2, 0.3, 0.4] + [0.5, 0.4, 0.3]) * 255
    assert error(np.round(levels), want) <= 1


def test_the_recipe_of_training_draws_the_same_boxes(root):
    data = images.from_torchvision(folder(root, compose(crop(8, (0.3, 0.4), (1, 1)), FLIP, TO_TENSOR)))
    first, second = data._steps
    assert (first.size, first.scale, first.ratio, first.flip) == ((8, 8), (0.3, 0.4), (1, 1), 0)
    assert second.p == 0.5
    assert data[0][0].shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("steps", "layout", "dtype"),
    [
        ((), "NHWC", "uint8"),
        ((PIL_TO_TENSOR,), "NCHW", "uint8"),
        ((TO_IMAGE,), "NCHW", "uint8"),
        ((TO_IMAGE, like("ToDtype", dtype="torch.float16", scale=True)), "NCHW", "float16"),
        ((PIL_TO_TENSOR, like("ConvertImageDtype", dtype="torch.float32")), "NCHW", "float32"),
    ],
)
def test_values_are_those_that_the_transforms_end_with(root, steps, layout, dtype):
    data = images.from_torchvision(folder(root, compose(crop(), *steps)))
    assert (data.layout, data.dtype) == (layout, dtype)


def test_other_options_and_target_transforms_are_kept(root):
    data = images.from_torchvision(folder(root, crop(), target_transform=lambda y: -y), on_error="skip")
    assert data.on_error == "skip" and data[5][1] == -1


@pytest.mark.parametrize(
    ("transform", "error_type", "text"),
    [
        (compose(crop(), like("ColorJitter")), TypeError, "slipring has no ColorJitter"),
        (lambda x: x, TypeError, "slipring has no (function|method)"),
        (resize(20, Mode.NEAREST), ValueError, "interpolation 'nearest'"),
        (resize(20, max_size=30), ValueError, "max_size=30"),
        (
            compose(TO_TENSOR, crop()),
            ValueError,
            "RandomResizedCrop comes after the picture has become float32",
        ),
        (compose(crop(), NORMALIZE), ValueError, "Normalize needs floats"),
        (compose(crop(), TO_TENSOR, NORMALIZE, FLIP), ValueError, "comes after Normalize"),
        (
            compose(crop(), TO_IMAGE, like("ToDtype", dtype="torch.float32", scale=False)),
            ValueError,
            "scale=True",
        ),
        (
            compose(crop(), like("ToDtype", dtype="torch.float32", scale=True)),
            ValueError,
            "becomes a tensor first",
        ),
        (compose(resize(20), crop()), ValueError, "leave out Resize"),
    ],
)
def test_what_slipring_has_not_is_refused_by_name(root, transform, error_type, text):
    with pytest.raises(error_type, match=text):
        images.from_torchvision(folder(root, transform))


def test_other_datasets_and_loaders_are_refused(root):
    with pytest.raises(TypeError, match="ImageFolder, not list"):
        images.from_torchvision([])
    other = type("ImageFolder", (), {})
    with_paths = type("WithPaths", (other,), {"__getitem__": lambda self, i: None, **vars(type(folder(root, None)))})()
    with pytest.raises(TypeError, match="WithPaths has a __getitem__ of its own"):
        images.from_torchvision(with_paths)
    with pytest.raises(TypeError, match="loader of its own"):
        images.from_torchvision(folder(root, None, loader=lambda path: None))


@pytest.mark.skipif(not loads(), reason="torchvision does not load here")
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_torchvisions_own_classes_are_known(root, version):
    import torch
    import torchvision
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if version == "v1":
        transform = v1.Compose([v1.Resize(20), v1.CenterCrop(14), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
    else:
        transform = v2.Compose(
            [
                v2.Resize(20),
                v2.CenterCrop(14),
                v2.ToImage(),
                v2.ToDtype(torch.float32, True),
                v2.Normalize([0.5] * 3, [0.2] * 3),
            ]
        )
    theirs = torchvision.datasets.ImageFolder(str(root), transform)
    ours = images.from_torchvision(theirs)
    for (a, label), (b, want) in zip((ours[i] for i in range(6)), theirs, strict=True):
        assert label == want and torch.allclose(torch.from_numpy(a), torch.as_tensor(b), atol=1.01 / 255 / 0.2)

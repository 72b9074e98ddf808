"""ImageFolder and Compose, translated; without torchvision, stand-in modules have its names."""

import importlib
import sys
import types

import numpy as np
import pytest
from PIL import Image

from slipring import images
from tests.support.pictures import encoded, error, pixels
from tests.support.torchvision_classes import TRANSFORMS, Attributes, Mode, compose, install, like, torchvision


class DatasetFolder(Attributes):
    def __getitem__(self, index):
        raise AssertionError("slipring reads the files itself")


def default_loader(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


FOLDERS = {"ImageFolder": type("ImageFolder", (DatasetFolder,), {})}
FOLDERS |= {"DatasetFolder": DatasetFolder, "default_loader": default_loader}


@pytest.fixture
def standin(monkeypatch):
    install(monkeypatch)
    module = types.ModuleType("torchvision.datasets.folder")
    vars(module).update(FOLDERS)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def resize(size):
    return like("Resize", size=size, interpolation=Mode.BILINEAR, max_size=None)


CENTER = like("CenterCrop", size=(14, 14))
TO_TENSOR = like("ToTensor")
NORMALIZE = like("Normalize", mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])


@pytest.fixture
def files(tmp_path):
    for number in range(6):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(encoded(pixels(30, 40, number)))
    return tmp_path


@pytest.fixture
def root(files, standin):
    return files


def folder(root, transform, loader=default_loader, target_transform=None, kind=FOLDERS["ImageFolder"]):
    ours = images.Folder(root)
    return kind(
        root=str(root),
        classes=ours.classes,
        class_to_idx=ours.class_to_idx,
        samples=ours.samples,
        loader=loader,
        transform=transform,
        target_transform=target_transform,
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


def test_other_options_and_target_transforms_are_kept(root):
    data = images.from_torchvision(folder(root, CENTER, target_transform=lambda y: -y), on_error="skip")
    assert data.on_error == "skip" and data[5][1] == -1


def test_other_datasets_and_loaders_are_refused(root):
    with pytest.raises(TypeError, match="ImageFolder, not list"):
        images.from_torchvision([])
    for name in ("WithPaths", "ImageFolder"):
        kind = type(name, (FOLDERS["ImageFolder"],), {"__getitem__": lambda self, index: None})
        with pytest.raises(TypeError, match=f"{name} has a __getitem__ of its own"):
            images.from_torchvision(folder(root, None, kind=kind))
    with pytest.raises(TypeError, match=r"must be a torchvision\.datasets\.ImageFolder, not ImageFolder"):
        images.from_torchvision(folder(root, None, kind=type("ImageFolder", (Attributes,), {})))


def test_a_programs_own_loader_is_refused_whatever_its_name(root):
    def default_loader(path):
        return None

    for loader in (lambda path: None, default_loader):
        with pytest.raises(TypeError, match="loader of its own"):
            images.from_torchvision(folder(root, None, loader=loader))


def test_a_subclass_that_overrides_methods_is_refused_and_one_with_other_defaults_is_not(root):
    class Twice(TRANSFORMS["CenterCrop"]):
        def __call__(self, image):
            return image

    class Small(TRANSFORMS["CenterCrop"]):
        def __init__(self):
            super().__init__(size=(12, 10))

    own = type("Resize", (), {"size": 20, "interpolation": "bilinear", "__call__": lambda self, image: image})
    with pytest.raises(TypeError, match="slipring has no Resize"):  # a class of the program with the same name
        images.from_torchvision(folder(root, compose(own(), CENTER)))
    with pytest.raises(TypeError, match="Twice is a CenterCrop with a __call__ of its own"):
        images.from_torchvision(folder(root, compose(resize(20), Twice(size=(8, 8)))))
    assert images.from_torchvision(folder(root, compose(resize(20), Small())))[0][0].shape == (12, 10, 3)


@pytest.fixture
def real():
    return torchvision() or pytest.skip("torchvision does not load here")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_torchvisions_own_classes_are_known(files, real, version):
    import torch
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if version == "v1":
        transform = v1.Compose([v1.Resize(20), v1.CenterCrop(14), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
    else:
        convert = v2.ToImage(), v2.ToDtype(torch.float32, True), v2.Normalize([0.5] * 3, [0.2] * 3)
        transform = v2.Compose([v2.Resize(20), v2.CenterCrop(14), *convert])
    assert_equals(files, real, transform)


def test_the_transforms_of_a_models_weights_give_the_same_values(files, real):
    from torchvision.models import ResNet18_Weights

    assert_equals(files, real, ResNet18_Weights.DEFAULT.transforms())


@pytest.mark.parametrize("training", [False, True])
def test_timms_transforms_are_known(files, real, training):
    timm = pytest.importorskip("timm")
    made = timm.data.create_transform(32, is_training=training, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25)
    if training:
        options = images.options_from_torchvision(made)
        crop, flip, policy, erasing = options["transform"]
        assert (crop.size, flip.p, erasing.p, erasing.mode) == ((32, 32), 0.5, 0.25, "const")
        assert repr(policy).startswith("RandAugment(num_layers=2, ops=[AutoContrast(p=0.5, m=9)")
        assert images.Folder(files, **options)[0][0].shape == (3, 32, 32)
    else:
        assert_equals(files, real, made)


@pytest.mark.parametrize("version", ["transforms", "transforms.v2"])
def test_torchvisions_own_attributes_are_those_that_slipring_reads(real, version):
    import torch

    module = importlib.import_module(f"torchvision.{version}")
    same = {
        "RandomCrop": (8, (1, 2, 3, 4), True, (9, 8, 7)), "Pad": ((1, 2), 3, "reflect"), "GaussianBlur": ((3, 5), 2.0),
        "ColorJitter": (0.4, (0.5, 2.0), 0, 0.1), "RandomSolarize": (9,), "RandomPosterize": (3,),
        "RandomAdjustSharpness": (2,), "RandomAffine": (9, (0.1, 0.2), (0.9, 1.1), 5), "RandomRotation": (9,),
        "RandomVerticalFlip": (), "RandomGrayscale": (), "RandomEqualize": (), "RandomAutocontrast": (),
        "RandomInvert": (), "RandomPerspective": (), "ElasticTransform": (), "TrivialAugmentWide": (),
        "RandAugment": (), "AutoAugment": (), "AugMix": (),
    }  # fmt: skip
    for name, arguments in same.items():
        theirs, ours = (getattr(library, name)(*arguments) for library in (module, images))
        (made,) = images.options_from_torchvision(module.Compose([theirs]))["transform"]
        assert simplified(made) == simplified(ours)
    tensors = [module.PILToTensor(), module.ConvertImageDtype(torch.float32), module.Normalize([0.5] * 3, [0.5] * 3)]
    (made,) = images.options_from_torchvision(module.Compose([*tensors, module.RandomErasing()]))["transform"]
    assert made.value in (0, (0.0,)) and made.p == 0.5


def simplified(step):
    """Return a step's public attributes; a fill of 0, one of [0] and none are all black."""
    values = {name: value for name, value in vars(step).items() if not name.startswith("_")}
    return {**values, "fill": 0 if values.get("fill") in (None, (0.0,)) else values["fill"]}


def assert_equals(files, real, transform):
    """Check that slipring's images differ from torchvision's by at most one level of 255."""
    import torch

    theirs = real.datasets.ImageFolder(str(files), transform)
    ours = images.from_torchvision(theirs)
    for (a, label), (b, want) in zip((ours[i] for i in range(6)), theirs, strict=True):
        assert label == want and torch.allclose(torch.from_numpy(a), torch.as_tensor(b), atol=1.01 / 255 / 0.2)

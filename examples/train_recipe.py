"""A small network learns photographs with a whole training recipe: python examples/train_recipe.py FOLDER.

FOLDER has one folder of JPEGs per class; every fifth file is for validation. The recipe is TrivialAugmentWide,
RandomErasing, and MixUp or CutMix. With --torchvision, torch's loader and torchvision make the batches instead.
"""

import argparse

import torch
from torch import nn

from slipring import images

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def slipring_loaders(train, valid, classes, args):
    from slipring.torch import DataLoader

    values = {"dtype": "float32", "layout": "NCHW", "mean": MEAN, "std": STD}
    mix = [images.MixUp(alpha=0.2, num_classes=classes), images.CutMix(alpha=1.0, num_classes=classes)]
    steps = [images.RandomResizedCrop(args.size), images.TrivialAugmentWide(), images.RandomErasing(0.1)]
    training = folder_of(train, steps, batch_transform=images.RandomChoice(mix), **values)
    validation = folder_of(valid, [images.Resize(args.size * 8 // 7), images.CenterCrop(args.size)], **values)
    # With rng="sample", the network learns from the same batches for any number of workers.
    options = {"batch_size": args.batch_size, "num_workers": args.workers, "rng": "sample"}
    return DataLoader(training, shuffle=True, drop_last=True, **options), DataLoader(validation, **options)


def folder_of(samples, transform, **options):
    return images.Folder.of("", [], {}, samples, transform, **options)


def torchvision_loaders(train, valid, classes, args):
    from torch.utils.data import DataLoader, default_collate
    from torchvision.transforms import v2

    values = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=classes), v2.CutMix(alpha=1.0, num_classes=classes)])
    steps = [v2.RandomResizedCrop(args.size), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(), *values]
    training = Opened(train, v2.Compose([*steps, v2.RandomErasing(0.1)]))
    validation = Opened(valid, v2.Compose([v2.Resize(args.size * 8 // 7), v2.CenterCrop(args.size), *values]))
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    mixed = {"collate_fn": lambda samples: mix(*default_collate(samples))}
    return DataLoader(training, shuffle=True, drop_last=True, **options, **mixed), DataLoader(validation, **options)


class Opened(torch.utils.data.Dataset):
    """What torchvision's ImageFolder does, for a list of (path, label)."""

    def __init__(self, samples, transform):
        self.samples, self.transform = samples, transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        from PIL import Image

        path, label = self.samples[index]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def network(classes):
    def block(inputs, outputs):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)

    blocks = (layer for inputs, outputs in ((3, 24), (24, 48), (48, 96)) for layer in block(inputs, outputs))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes))


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = [model(pixels).argmax(1) == labels for pixels, labels in loader]
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--torchvision", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    folder = images.Folder(args.folder)
    train = [sample for number, sample in enumerate(folder.samples) if number % 5]
    classes, loaders = len(folder.classes), torchvision_loaders if args.torchvision else slipring_loaders
    training, validation = loaders(train, folder.samples[::5], classes, args)
    model = network(classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        model.train()
        for pixels, labels in training:  # labels are soft: a share of each class
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {accuracy(model, validation):.3f}")


if __name__ == "__main__":
    main()

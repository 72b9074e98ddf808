"""The networks that are trained, of plain torch modules: they get normalised images of 224 × 224, channels first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.baselines.recipes import CLASSES, MEAN, SIDE, STD


def small(width: int = 40) -> nn.Module:
    """Return a network that one core of a CPU trains about as fast as another core decodes."""
    return nn.Sequential(
        nn.Conv2d(3, width, 8, stride=8),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    )


class Block(nn.Module):
    """Two convolutions and a shortcut: ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks, inputs = [], 64
    for outputs in (64, 128, 256, 512):
        blocks += [Block(inputs, outputs, outputs // inputs), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class VisionTransformer(nn.Module):
    """ViT-S: patches of 16 × 16, 12 layers of width 384 with 6 heads."""

    def __init__(self, patch: int = 16, width: int = 384, heads: int = 6, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (SIDE // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.positions
        return self.head(self.layers(x)[:, 0])


NETWORKS: dict[str, Callable[[], nn.Module]] = {"small": small, "ResNet-18": resnet18, "ViT-S": VisionTransformer}


class Training:
    """A network on a device, channels last; in bfloat16 on an accelerator."""

    def __init__(self, network: str, device: torch.device) -> None:
        self.device = device
        self.network = NETWORKS[network]().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-4)
        self.fast = device.type != "cpu"
        dtype = torch.bfloat16 if self.fast else torch.float32
        self.mean, self.std = (
            255 * torch.tensor(value, dtype=dtype, device=device)[:, None, None] for value in (MEAN, STD)
        )

    def step(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Train with a uint8 batch on the device; return the loss, there."""
        if pixels.shape[-1] == 3:
            pixels = pixels.permute(0, 3, 1, 2)
        x = pixels.to(self.mean.dtype, memory_format=torch.channels_last).sub_(self.mean).div_(self.std)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.fast):
            loss = nn.functional.cross_entropy(self.network(x), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

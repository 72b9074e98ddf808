"""Transforms of torchvision and timm as steps of slipring."""

"""A small transformer learns text in packs: python examples/train_packed.py [FOLDER].

The documents are the lines of a folder's .txt, .md and .py files (by default, Python's standard library); a token is a
byte. A pack has up to 2,048 tokens of whole lines, and attention stays within each line. --padded trains on the same
lines in padded batches: the loss per token is the same, but the network also computes the padding.
"""

import argparse
import os
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from slipring import tokens
from slipring.torch import DataLoader

BUDGET, WIDTH, HEADS = 2048, 64, 4


class Lines:
    """The lines of files in one flat array, whose bounds are `ends`."""

    def __init__(self, folder):
        paths = [path for path in sorted(pathlib.Path(folder).iterdir()) if path.suffix in (".txt", ".md", ".py")]
        self.flat = np.concatenate([np.fromfile(path, np.uint8) for path in paths[:50]])
        self.ends = np.concatenate([[0], np.flatnonzero(self.flat == ord("\n")) + 1])
        lengths = np.diff(self.ends)
        self.starts, self.lengths = self.ends[:-1][lengths > 1], lengths[lengths > 1]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return {"input_ids": self.flat[self.starts[index] :][: self.lengths[index]]}

    def spans(self, indices):
        starts = self.starts[indices]
        return {"input_ids": (self.flat, starts, starts + self.lengths[indices])}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, attend):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = attend(q, k, v).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.out(mixed)
        return x + self.narrow(functional.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(BUDGET, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids, positions, attend):
        x = self.tokens(ids) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(x)


def within_documents(bounds):
    """Return attention within each document. On a GPU, torch's varlen_attn or FlashAttention does this in one call."""

    def attend(q, k, v):
        parts = [tensor.split(bounds.diff().tolist(), 2) for tensor in (q, k, v)]
        return torch.cat([functional.scaled_dot_product_attention(*part, is_causal=True) for part in zip(*parts)], 2)

    return attend


def causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def packed_loss(model, batch):
    logits = model(batch["input_ids"], batch["position_ids"], within_documents(batch["cu_seq_lens_q"]))
    # A label of format="transformers" is the token at its own place: the model predicts it one place earlier.
    return functional.cross_entropy(logits[0, :-1], batch["labels"][0, 1:])


def padded_loss(model, batch):
    ids, mask = batch["input_ids"].long(), batch["attention_mask"]
    logits = model(ids, torch.arange(ids.shape[1]).expand_as(ids), causal)
    labels = ids.masked_fill(mask == 0, -100)[:, 1:]
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.path.dirname(os.__file__))
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    lines = Lines(args.folder)
    packs = tokens.PackedSampler(lines.lengths, BUDGET, overflow="drop", seed=0)
    collate = tokens.Padded() if args.padded else tokens.Flat("transformers")
    torch.manual_seed(0)
    model, loss_of = Transformer(), padded_loss if args.padded else packed_loss
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with DataLoader(lines, batch_sampler=packs, collate_fn=collate, num_workers=args.workers) as loader:
        for step, batch in zip(range(args.steps), loader):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step}: {batch['input_ids'].numel()} places, loss per token {loss.item():.4f}")


if __name__ == "__main__":
    main()

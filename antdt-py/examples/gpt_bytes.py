"""Trains a small GPT on the bytes of a text file, by default of this one.

antdt run --nproc-per-node 2 --data samples:1000 --epochs 4 --global-batch-size 32 gpt_bytes.py --epochs 4
"""

import argparse
import os
from typing import Tuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import antdt


class Windows(Dataset):
    """Pieces of a text that begin at regular distances, and for each the same piece one byte later."""

    def __init__(self, text: bytes, samples: int, length: int) -> None:
        if len(text) <= length:
            raise SystemExit(f"the text has {len(text)} bytes: give one of more than --context {length}")
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        begin = index * (len(self.text) - self.length) // self.samples
        piece = self.text[begin : begin + self.length + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Causal self-attention, then a layer at each position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.position_wise = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.queries_keys_values(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-1, -2) / (width // self.heads) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(future, float("-inf")).softmax(-1) @ values
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.position_wise(self.between(x))


class GPT(nn.Module):
    def __init__(self, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.bytes(text) + self.positions(torch.arange(text.shape[1]))
        return self.out(self.last(self.blocks(x)))


def loss_of(model: nn.Module, batch: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Returns the cross entropy of the next byte, in nats."""
    text, following = batch
    return cross_entropy(model(text).flatten(0, 1), following.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default=__file__, help="file to learn")
    parser.add_argument(
        "--samples", type=int, default=1000, help="windows of an epoch: --data samples:N of `antdt run`"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--context", type=int, default=32, help="bytes of a window")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    options = parser.parse_args()

    torch.manual_seed(0)
    antdt.init()
    with open(options.text, "rb") as file:
        data = Windows(file.read(), options.samples, options.context)
    loader = DataLoader(data, batch_sampler=antdt.BatchSampler(data))
    plain = GPT(options.context, options.width, options.heads, options.layers)
    model = antdt.DDP(plain)
    optimizer = antdt.wrap(torch.optim.AdamW(model.parameters(), lr=options.lr))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    antdt.carry(scheduler)

    # Every twentieth window shows what the model has learnt.
    shown = next(iter(DataLoader([data[index] for index in range(0, len(data), 20)], batch_size=len(data))))
    with torch.no_grad():
        before = float(loss_of(plain, shown))
    for _ in range(options.epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    if os.environ.get("RANK", "0") == "0":
        with torch.no_grad():
            print(f"loss {before:.3f} -> {float(loss_of(plain, shown)):.3f} nats a byte")


if __name__ == "__main__":
    main()

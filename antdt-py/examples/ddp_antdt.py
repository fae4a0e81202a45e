"""Classifies pictures of digits in two processes. `ddp_antdt.py` is `ddp_plain.py` with the lines of AntDT.

antdt run --nproc-per-node 2 --data samples:4000 --epochs 4 --global-batch-size 64 ddp_antdt.py --epochs 4
"""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antdt

SAMPLES, TEST_SAMPLES = 4000, 1000
#: Digits of 3 x 5 points.
FONT = (
    "111101101101111 010110010010111 111001111100111 111001111001111 101101111001001 "
    "111100111001111 111100111101111 111001001001001 111101111101111 111101111001111"
).split()


def digits(samples: int, seed: int) -> TensorDataset:
    """Returns noisy pictures of 16 x 16 points, each with a digit somewhere, and the digits."""
    numbers = torch.Generator().manual_seed(seed)
    font = torch.tensor([[float(point) for point in digit] for digit in FONT]).view(10, 5, 3)
    large = font.repeat_interleave(2, 1).repeat_interleave(2, 2)
    labels = torch.randint(10, (samples,), generator=numbers)
    pictures = 0.3 * torch.randn(samples, 1, 16, 16, generator=numbers)
    for picture, label in zip(pictures, labels):
        top, left = torch.randint(7, (2,), generator=numbers).tolist()
        picture[0, top : top + 10, left : left + 6] += large[label]
    return TensorDataset(pictures, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    pictures, labels = data.tensors
    model.eval()
    with torch.no_grad():
        right = model(pictures).argmax(1).eq(labels).float().mean()
    model.train()
    return float(right)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a process in a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = parser.parse_args()

    torch.manual_seed(0)
    antdt.init()
    rank = int(os.environ.get("RANK", "0"))
    data, test = digits(options.samples, seed=1), digits(TEST_SAMPLES, seed=2)
    loader = DataLoader(data, batch_sampler=antdt.BatchSampler(data, options.batch_size))
    plain = network()
    model = antdt.DDP(plain)
    optimizer = antdt.wrap(torch.optim.Adam(model.parameters(), lr=options.lr))

    before = accuracy(plain, test)
    for _ in range(options.epochs):
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
    if rank == 0:
        print(f"accuracy {before:.3f} -> {accuracy(plain, test):.3f}")


if __name__ == "__main__":
    main()

"""Predicts clicks with DeepFM, on rows that another factorization machine generates.

antdt run --nproc-per-node 2 --data samples:20000 --epochs 2 --global-batch-size 256 deepfm_clicks.py --epochs 2
"""

import argparse
import os

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import antdt

#: Features of a row, and the values that each of them takes.
FIELDS, VALUES = 8, 50


def pairs(vectors: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the products of all pairs of a row's vectors. Shape: rows, fields, width."""
    return 0.5 * (vectors.sum(1).pow(2) - vectors.pow(2).sum(1)).sum(1)


def clicks(samples: int, seed: int) -> TensorDataset:
    """Returns rows of features, and whether each was clicked; the same rows for the same seed."""
    hidden, numbers = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    weights = 0.5 * torch.randn(FIELDS * VALUES, generator=hidden)
    vectors = 0.5 * torch.randn(FIELDS * VALUES, 4, generator=hidden)
    # Low values are frequent, as in logs.
    features = (VALUES * torch.rand(samples, FIELDS, generator=numbers).pow(2)).long()
    features += VALUES * torch.arange(FIELDS)
    odds = weights[features].sum(1) + pairs(vectors[features]) - 1
    return TensorDataset(features, torch.bernoulli(odds.sigmoid(), generator=numbers))


class DeepFM(nn.Module):
    """Weights of single features, products of pairs, and a network over the same vectors."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.weights, self.vectors = nn.Embedding(FIELDS * VALUES, 1), nn.Embedding(FIELDS * VALUES, width)
        self.deep = nn.Sequential(nn.Linear(FIELDS * width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        nn.init.normal_(self.weights.weight, std=0.01)
        nn.init.normal_(self.vectors.weight, std=0.1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        vectors = self.vectors(features)
        return self.weights(features).sum((1, 2)) + pairs(vectors) + self.deep(vectors.flatten(1)).squeeze(1)


def loss_on(model: nn.Module, data: TensorDataset) -> float:
    features, clicked = data.tensors
    with torch.no_grad():
        return float(binary_cross_entropy_with_logits(model(features), clicked))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20000, help="rows: --data samples:N of `antdt run`")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=8, help="length of a feature's vector")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    options = parser.parse_args()

    torch.manual_seed(0)
    antdt.init()
    data, test = clicks(options.samples, seed=1), clicks(4000, seed=2)
    loader = DataLoader(data, batch_sampler=antdt.BatchSampler(data, batch_size=256))
    plain = DeepFM(options.width, options.hidden)
    model = antdt.DDP(plain)
    optimizer = antdt.wrap(torch.optim.Adam(model.parameters(), lr=options.lr))

    before = loss_on(plain, test)
    for _ in range(options.epochs):
        for features, clicked in loader:
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(features), clicked).backward()
            optimizer.step()
    if os.environ.get("RANK", "0") == "0":
        print(f"log loss {before:.3f} -> {loss_on(plain, test):.3f}")


if __name__ == "__main__":
    main()

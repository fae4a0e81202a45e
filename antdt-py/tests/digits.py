"""A script that was written for one process, with AntDT's lines in it. Writes which samples were in each step, and the model.

ACCUMULATE batches make a step.
"""

import json
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import antdt

SAMPLES, EPOCHS = 400, 2


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(12, 16)
        self.unused = torch.nn.Linear(3, 3)
        self.frozen = torch.nn.Linear(16, 16)
        self.out = torch.nn.Linear(16, 2)
        self.scale = torch.nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.out(self.frozen(torch.tanh(self.hidden(x))))


def data():
    numbers = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 12, generator=numbers)
    labels = (inputs[:, 0] * 3 + inputs[:, 1]).gt(0).long()
    return TensorDataset(inputs, labels, torch.arange(SAMPLES))


def train(network, loader, epochs, taken, accumulate=1, plain=False):
    """The loop of any script; `taken` is told the samples of each step. Without clipping and a schedule, it is `plain`."""
    model, scale = antdt.DDP(network), antdt.DDP(network.scale)
    last = list(network.scale.parameters())
    others = [parameter for name, parameter in network.named_parameters() if not name.startswith("scale.")]
    optimizer = antdt.wrap(torch.optim.AdamW(others, lr=0.01, weight_decay=0.1), accumulate)
    second = antdt.wrap(torch.optim.SGD(last, lr=0.05, momentum=0.9), accumulate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    for _ in range(epochs):
        for count, (x, y, number) in enumerate(loader):
            # Gradients stay where they are or are new ones.
            optimizer.zero_grad(set_to_none=count % 3 > 0)
            second.zero_grad(set_to_none=count % 2 > 0)
            loss = torch.nn.functional.cross_entropy(scale(model(x)), y)
            loss.backward()
            if not plain:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            second.step()
            if not plain:
                scheduler.step()
            taken(number.tolist())


def main():
    folder, rank = sys.argv[1], int(os.environ.get("RANK", "0"))
    # Another model in each process: all go on with that of the first.
    torch.manual_seed(rank)
    antdt.init()
    sampler = antdt.BatchSampler(data())
    accumulate = int(os.environ.get("ACCUMULATE", "1"))
    network, steps = Network(), []
    train(
        network,
        DataLoader(data(), batch_sampler=sampler),
        EPOCHS,
        lambda batch: steps.append([] if sampler.is_borrowed else batch),
        accumulate,
        plain=accumulate > 1,
    )
    torch.save(network.state_dict(), os.path.join(folder, f"model-{rank}.pt"))
    with open(os.path.join(folder, f"steps-{rank}.json"), "w") as file:
        json.dump(steps, file)


if __name__ == "__main__":
    main()

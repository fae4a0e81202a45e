"""Counts at the model how often each sample is in a step. `python counting.py FOLDER [SECONDS]`: each batch takes SECONDS."""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader

import antdt

folder, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
SAMPLES = int(os.environ.get("SAMPLES", "601"))


class Counting(torch.nn.Module):
    """A weight for each sample: the gradient of a step says which samples were in it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SAMPLES))
        self.register_buffer("counts", torch.zeros(SAMPLES, dtype=torch.int64))

    def forward(self, samples):
        return self.weight[samples].mean()


class Numbers:
    """The samples: their numbers. Notes which process reads them."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, sample):
        with open(os.path.join(folder, f"read-{os.environ.get('RANK', '0')}-{os.getpid()}"), "a") as file:
            file.write(f"{sample}\n")
        return sample


antdt.init()
if "READERS" in os.environ:
    loader = antdt.DataLoader(Numbers(), num_workers=int(os.environ["READERS"]))
else:
    loader = DataLoader(range(SAMPLES), batch_sampler=antdt.BatchSampler(range(SAMPLES)))
model = antdt.DDP(Counting())
optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=1.0))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
antdt.carry(scheduler)
rank = os.environ.get("RANK", "0")
with open(os.path.join(folder, f"started-{rank}"), "a") as file:
    file.write(f"{os.getpid()}\n")

if os.environ.get("LATE") == rank and os.environ["ANTDT_INCARNATION"] != "0":
    while not os.path.exists(os.path.join(folder, "counts-0.json")):
        time.sleep(0.05)
try:
    for _ in range(int(os.environ.get("EPOCHS", "1"))):
        for batch in loader:
            time.sleep(seconds)
            optimizer.zero_grad()
            model(batch).backward()
            gradient = model.module.weight.grad
            if gradient is not None:
                # Each sample has the share 1 / total of the mean.
                total = round(1 / float(gradient[gradient > 0].min()))
                model.module.counts += torch.round(gradient * total).to(torch.int64)
            if os.environ.get("HANGS") == rank and os.environ["ANTDT_INCARNATION"] == "0" and scheduler.last_epoch == 9:
                time.sleep(10_000)
            optimizer.step()
            scheduler.step()
except SystemExit:
    # It is to leave, and ends as it likes.
    if "LEAVES" in os.environ:
        sys.exit(int(os.environ["LEAVES"]))
    raise
with open(os.path.join(folder, f"counts-{rank}.json"), "w") as file:
    json.dump({"scheduled": scheduler.last_epoch, "counts": model.module.counts.tolist()}, file)

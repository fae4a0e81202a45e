"""Counts at the model how often each sample is in a step. `python counting.py FOLDER [SECONDS]`: each batch takes SECONDS."""

import json
import os
import sys
import time

import torch
from counted import EPOCHS, FOLDER, RANK, SAMPLES, Counting, started
from torch.utils.data import DataLoader

import antdt


class Numbers:
    """The samples: their numbers. Notes which process reads them."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, sample):
        with open(os.path.join(FOLDER, f"read-{RANK}-{os.getpid()}"), "a") as file:
            file.write(f"{sample}\n")
        return sample


def read(samples):
    return map(Numbers().__getitem__, samples)


antdt.init()
if "READERS" in os.environ:
    source = antdt.IterableDataset(read, SAMPLES) if "STREAM" in os.environ else Numbers()
    loader = antdt.DataLoader(source, num_workers=int(os.environ["READERS"]))
else:
    loader = DataLoader(range(SAMPLES), batch_sampler=antdt.BatchSampler(range(SAMPLES)))
model = antdt.DDP(Counting())
optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=1.0))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
antdt.carry(scheduler)
started()

if os.environ.get("LATE") == RANK and os.environ["ANTDT_INCARNATION"] != "0":
    while not os.path.exists(os.path.join(FOLDER, "counts-0.json")):
        time.sleep(0.05)
try:
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).backward()
            model.module.count()
            if os.environ.get("HANGS") == RANK and os.environ["ANTDT_INCARNATION"] == "0" and scheduler.last_epoch == 9:
                time.sleep(10_000)
            optimizer.step()
            scheduler.step()
except SystemExit:
    # It is to leave, and ends as it likes.
    if "LEAVES" in os.environ:
        sys.exit(int(os.environ["LEAVES"]))
    raise
with open(os.path.join(FOLDER, f"counts-{RANK}.json"), "w") as file:
    json.dump({"scheduled": scheduler.last_epoch, "counts": model.module.counts.tolist()}, file)

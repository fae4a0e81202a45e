"""A model that counts how often each sample is in a step, for scripts that are started as `python SCRIPT FOLDER [SECONDS]`."""

import json
import os
import sys
import time

import torch

FOLDER, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
RANK, SAMPLES, EPOCHS = (
    os.environ.get("RANK", "0"),
    int(os.environ.get("SAMPLES", "601")),
    int(os.environ.get("EPOCHS", "1")),
)


#: The step after which a script has its trainer stop.
STOPS = int(os.environ.get("STOPS", "-1"))


class Counting(torch.nn.Module):
    """A weight for each sample: the gradient of a step says which samples were in it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SAMPLES))
        self.register_buffer("counts", torch.zeros(SAMPLES, dtype=torch.int64))

    def forward(self, samples):
        time.sleep(SECONDS)
        return self.weight[samples].mean()

    def count(self):
        """Called between the backward pass and the step."""
        gradient = self.weight.grad
        if gradient is not None:
            # Each sample has the share 1 / total of the mean.
            total = round(1 / float(gradient[gradient > 0].min()))
            self.counts += torch.round(gradient * total).to(torch.int64)


def started():
    with open(os.path.join(FOLDER, f"started-{RANK}"), "a") as file:
        file.write(f"{os.getpid()}\n")


def stepped(step):
    """After a step. With `WAITS`, rank 0 waits after that step until rank 1 began its second life, so that it joins before the end."""
    if RANK == "0" and step == int(os.environ.get("WAITS", "-1")):
        while len(open(os.path.join(FOLDER, "started-1")).readlines()) < 2:
            time.sleep(0.05)


def write(model, out, **found):
    """Writes the counts, and the names of the files that the trainer left."""
    saved = sorted({name for _, folders, files in os.walk(out) for name in folders + files})
    with open(os.path.join(FOLDER, f"counts-{RANK}.json"), "w") as file:
        json.dump({"counts": model.counts.tolist(), "saved": saved, **found}, file)

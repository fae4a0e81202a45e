"""A script that goes wrong in the way that its second argument names."""

import sys
import time

import torch
from torch.utils.data import DataLoader

import antdt

antdt.init()
data = range(601)
loader = DataLoader(data, batch_sampler=antdt.BatchSampler(data), num_workers=1 if sys.argv[2] == "ahead" else 0)
model = antdt.DDP(torch.nn.Linear(1, 1))
if sys.argv[2] != "no-optimizer":
    optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=0.1))
for batch in loader:
    if sys.argv[2] == "raises":
        raise ZeroDivisionError("the script is wrong")
    if sys.argv[2] not in ("no-zero", "no-optimizer"):
        optimizer.zero_grad()
    loss = model(batch.float().unsqueeze(1)).mean()
    if sys.argv[2] == "twice":
        loss.backward(retain_graph=True)
    if sys.argv[2] != "no-backward":
        loss.backward()
    if sys.argv[2] != "no-step":
        optimizer.step()
if sys.argv[2] == "raises-later":
    # Longer than nodes of other jobs may take to exit.
    time.sleep(5)
    raise ZeroDivisionError("the script is wrong")

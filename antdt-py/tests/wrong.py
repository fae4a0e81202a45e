"""A script that goes wrong in the way that its second argument names."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader

import antdt

antdt.init()
#: Whether this worker is the one that does not do what the others do.
IS_ODD = os.environ["RANK"] == "1"
data = range(601)
loader = DataLoader(data, batch_sampler=antdt.BatchSampler(data), num_workers=1 if sys.argv[2] == "ahead" else 0)
model = antdt.DDP(torch.nn.Linear(1, 2 if sys.argv[2] == "differs" and IS_ODD else 1))
if sys.argv[2] != "no-optimizer":
    optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=0.1))
for step, batch in enumerate(loader):
    if sys.argv[2] == "leaves" and IS_ODD and step == 3:
        break
    if sys.argv[2] == "skips" and IS_ODD and step == 3:
        continue
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

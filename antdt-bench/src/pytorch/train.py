"""One rank of a training job, under `antdt run` or under torchrun with gloo: the same model, data and batches.

usage: train.py PEER FOLDER SAMPLES BATCH WIDTH SECONDS SLOW

PEER is antdt or ddp. Each rank has BATCH samples of a step; SECONDS pass for each of them, SLOW times as many in rank 0. Writes the time
of each step to FOLDER/steps-RANK-PID, and in the end to FOLDER/end-RANK.json how often each sample was in a step and how long it took
to get the next batch.
"""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

peer, folder = sys.argv[1], sys.argv[2]
samples, batch, width = (int(word) for word in sys.argv[3:6])
seconds, slow = (float(word) for word in sys.argv[6:8])
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
torch.manual_seed(1)
data = TensorDataset(torch.randn(samples, 32), torch.randint(0, 2, (samples,)), torch.arange(samples))


class Network(torch.nn.Module):
    """Its first parameter is read by the number of the sample: where its gradient is not zero, the sample is in the step."""

    def __init__(self):
        super().__init__()
        self.marks = torch.nn.Parameter(torch.zeros(samples))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
        )

    def forward(self, inputs, numbers):
        return self.layers(inputs), self.marks[numbers].mean()


network = Network()
if peer == "antdt":
    import antdt

    antdt.init()
    loader = DataLoader(data, batch_sampler=antdt.BatchSampler(data))
    network.register_buffer("counts", torch.zeros(samples))
    model = antdt.DDP(network)
    optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=0.01))
else:
    import torch.distributed
    from torch.utils.data.distributed import DistributedSampler

    torch.distributed.init_process_group("gloo")
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data))
    network.register_buffer("counts", torch.zeros(samples), persistent=False)
    model = torch.nn.parallel.DistributedDataParallel(network, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

waited = []
with open(os.path.join(folder, f"steps-{rank}-{os.getpid()}"), "w", buffering=1) as steps:
    batches = iter(loader)
    while True:
        began = time.perf_counter()
        try:
            inputs, labels, numbers = next(batches)
        except StopIteration:
            break
        waited.append(time.perf_counter() - began)
        time.sleep(seconds * len(inputs) * (slow if rank == 0 else 1))
        optimizer.zero_grad()
        outputs, mark = model(inputs, numbers)
        (torch.nn.functional.cross_entropy(outputs, labels) + mark).backward()
        if network.marks.grad is not None:
            network.counts += network.marks.grad > 0
        optimizer.step()
        steps.write(f"{time.time()}\n")

waited.sort()
with open(os.path.join(folder, f"end-{rank}.json"), "w") as file:
    counts = network.counts.tolist()
    json.dump({"inexact": sum(count != 1 for count in counts), "next_p99": waited[len(waited) * 99 // 100]}, file)

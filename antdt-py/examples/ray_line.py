"""Fits a line with numpy on several nodes of a Ray cluster. This file is the driver and, started by the job, the training script::

python ray_line.py --hosts 2                       # a cluster of this machine alone has one node: --hosts 1
ray job submit --working-dir . -- python ray_line.py --hosts 2
"""

import argparse
import os

import numpy as np

import antdt

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, default=20000)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--hosts", type=int, default=1)
parser.add_argument("--address", help="of a running cluster; by default the one of this machine, or a new one")
args = parser.parse_args()


def drive():
    import ray

    import antdt.ray

    ray.init(address=args.address)
    result = antdt.ray.run(
        os.path.abspath(__file__),
        *("--samples", str(args.samples), "--epochs", str(args.epochs)),
        # Training goes on while one host at least is there.
        num_hosts=(1, args.hosts),
        workers_per_host=2,
        resources_per_host={"CPU": 1},
        settings={"data": f"samples:{args.samples}", "epochs": args.epochs, "global_batch_size": 256},
    )
    nodes = ", ".join(f"{host.name} at {host.address}" for host in result.hosts)
    print(f"{result.samples['committed']} samples on {nodes}")


def train():
    antdt.init()
    numbers = np.random.default_rng(7)
    x = numbers.normal(size=(args.samples, 8)).astype(np.float32)
    y = x @ np.arange(8, dtype=np.float32)
    w = np.zeros(8, dtype=np.float32)

    def loss():
        return float(np.mean((x @ w - y) ** 2))

    before = loss()
    client = antdt.ShardClient(args.samples, gradient=w.size, state={"w": w})
    for _ in range(args.epochs):
        for batch in client:
            error = x[batch] @ w - y[batch]
            mean = client.combine(2 * error @ x[batch] / len(batch))
            if mean is not None:
                w -= 0.1 * mean
    if os.environ.get("RANK", "0") == "0":
        print(f"loss {before:.4f} -> {loss():.4f}")


if "ANTDT_NODE" in os.environ:
    train()
else:
    drive()

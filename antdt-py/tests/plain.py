"""A training loop without torch: a line is fitted, and each sample counted. `plain.py FOLDER [SECONDS]`; without GRADIENT, only batches."""

import json
import os
import sys
import time

import numpy as np

import antdt

folder, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
SAMPLES, EPOCHS = int(os.environ.get("SAMPLES", "601")), int(os.environ.get("EPOCHS", "1"))
antdt.init()
rank = os.environ.get("RANK", "0")
numbers = np.random.default_rng(7)
x = numbers.normal(size=(SAMPLES, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 0.5], dtype=np.float32)
# A weight for each sample beside the line's: its gradient says which samples were in a step.
w, counts = np.full(3, float(rank), dtype=np.float32), np.zeros(SAMPLES, dtype=np.int64)
gradient = 3 + SAMPLES if "GRADIENT" in os.environ else 0
client = antdt.ShardClient(SAMPLES, gradient=gradient, state={"w": w, "counts": counts})
with open(os.path.join(folder, f"started-{rank}"), "a") as file:
    file.write(f"{os.getpid()}\n")
own = []
for _ in range(EPOCHS):
    for batch in client:
        time.sleep(seconds)
        if not gradient:
            own.extend([] if client.is_borrowed else batch.tolist())
            continue
        marks = np.zeros(SAMPLES, dtype=np.float32)
        marks[batch] = 1 / len(batch)
        error = x[batch] @ w - y[batch]
        mean = client.combine(np.concatenate([2 * error @ x[batch] / len(batch), marks]))
        if mean is not None:
            w -= 0.1 * mean[:3]
            total = round(1 / float(mean[3:][mean[3:] > 0].min()))
            counts += np.rint(mean[3:] * total).astype(np.int64)
with open(os.path.join(folder, f"counts-{rank}.json"), "w") as file:
    json.dump({"counts": counts.tolist(), "own": own, "w": w.tolist()}, file)

"""A training function of Ray Train that counts samples at the model: `ray_training.py ADDRESS FOLDER SAMPLES`. Its second worker kills
itself once."""

import glob
import json
import os
import signal
import sys
import time

import ray
from ray import train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from antdt.ray_train import AntdtConfig

ADDRESS, FOLDER, SAMPLES = sys.argv[1], sys.argv[2], int(sys.argv[3])


def loop(config):
    import numpy as np

    import antdt

    folder, samples = config["folder"], config["samples"]
    antdt.init()
    rank = os.environ["RANK"]
    counts = np.zeros(samples, dtype=np.int64)
    client = antdt.ShardClient(samples, gradient=samples, state={"counts": counts})
    with open(os.path.join(folder, f"started-{rank}"), "a") as file:
        file.write(f"{os.getpid()}\n")
    steps = 0
    for batch in client:
        time.sleep(0.05)
        marks = np.zeros(samples, dtype=np.float32)
        marks[batch] = 1 / len(batch)
        mean = client.combine(marks)
        if mean is not None:
            steps += 1
            counts += np.rint(mean * round(1 / float(mean[mean > 0].min()))).astype(np.int64)
        kept = glob.glob(os.path.join(folder, "report", "run", "checkpoints", "*", "manifest.json"))
        if rank == "1" and kept and not os.path.exists(os.path.join(folder, "killed")):
            open(os.path.join(folder, "killed"), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    with open(os.path.join(folder, f"counts-{rank}.json"), "w") as file:
        json.dump({"counts": counts.tolist()}, file)
    train.report({"rank": train.get_context().get_world_rank()})


ray.init(address=ADDRESS)
settings = {
    "data": f"samples:{SAMPLES}",
    "global_batch_size": 60,
    "policy": "none",
    "grace": "2s",
    "checkpoint_every": "5steps",
    "report_dir": os.path.join(FOLDER, "report"),
}
DataParallelTrainer(
    loop,
    train_loop_config={"folder": FOLDER, "samples": SAMPLES},
    backend_config=AntdtConfig(settings=settings),
    scaling_config=train.ScalingConfig(num_workers=3, resources_per_worker={"CPU": 1, "host": 0.5}),
    run_config=train.RunConfig(
        storage_path=os.path.join(FOLDER, "results"), failure_config=train.FailureConfig(max_failures=1)
    ),
).fit()

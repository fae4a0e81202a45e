"""A driver whose job does not end by itself: `ray_driver.py ADDRESS FOLDER`."""

import sys

import ray

import antdt.ray

address, folder = sys.argv[1:]
ray.init(address=address)
antdt.ray.run(
    "/bin/sh",
    *("-c", f"echo > {folder}/at-$RANK; exec sleep 1000"),
    num_hosts=2,
    resources_per_host={"CPU": 1, "host": 1},
    settings={"grace": "1s", "report_dir": f"{folder}/report"},
    environment={"ANTDT_RAY_TEST": folder},
)

"""One rank of gloo, as PyTorch users run it. Takes orders from a socket and sleeps in between.

usage: gloo.py HOST PORT RANK WORLD STORE   (STORE is a file that does not exist yet)
"""
import json
import os
import socket
import sys
import time
from datetime import timedelta


def status(field):
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def main():
    host, port, rank, world, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    control = socket.create_connection((host, port))
    control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method="file://" + store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    dist.barrier()
    orders = control.makefile("r")

    def say(**answer):
        control.sendall((json.dumps(answer) + "\n").encode())

    say(rank=rank, pid=os.getpid())
    data = None
    slept = time.process_time()
    for line in orders:
        idle = time.process_time() - slept
        order = line.split()
        try:
            if order[0] == "prepare":
                data = None
                data = torch.arange(int(order[2]) // 4).remainder_(251).to(torch.float32).add_(rank + 1)
                with open("/proc/self/clear_refs", "w") as peak:
                    peak.write("5")
                before, shared = status("VmRSS:"), status("RssShmem:")
                dist.barrier()
                dist.all_reduce(data)
                peak, shared = status("VmHWM:"), status("RssShmem:") - shared
                want = torch.arange(len(data)).remainder_(251).to(torch.float32).mul_(world)
                want += world * (world + 1) // 2
                if not torch.equal(data, want):
                    raise ValueError("a sum is wrong")
                del want
                say(before=before, peak=peak, shared=shared)
            elif order[0] == "time":
                calls, repetitions, warm = int(order[2]), int(order[3]), int(order[4])
                seconds, cpu = [], 0.0
                for repetition in range(warm + repetitions):
                    # Sums of zeros stay zeros, however often they are summed.
                    data.fill_(1.0 if calls == 1 else 0.0)
                    dist.barrier()
                    cpu_before, began = time.process_time(), time.perf_counter()
                    for _ in range(calls):
                        dist.all_reduce(data)
                    took, used = time.perf_counter() - began, time.process_time() - cpu_before
                    if repetition >= warm:
                        seconds.append(took / calls)
                        cpu += used
                    want = world if calls == 1 else 0
                    if data[0].item() != want or data[-1].item() != want:
                        raise ValueError("a sum is wrong")
                say(seconds=seconds, cpu_s=cpu / (calls * repetitions), idle_cpu_s=idle)
            else:
                say(error="gloo knows no order " + line.strip())
        except Exception as error:
            say(error=repr(error))
        slept = time.process_time()
    # Nobody gives orders any more. The others may be gone already, so there is nothing to agree on.
    os._exit(0)


main()

"""AntDT for PyTorch: every node busy, every sample counted once.

Five lines in a training script::

    antdt.init()
    loader = antdt.DataLoader(dataset)
    model = antdt.DDP(model)
    optimizer = antdt.wrap(optimizer)

and ``antdt run --nproc-per-node 4 --data samples:60000 train.py``.
"""

from typing import Any

from ._antdt import WorkerError, __version__
from ._job import UsageError, init, is_initialized
from .data import BatchSampler

__all__ = [
    "BatchSampler",
    "DDP",
    "DataLoader",
    "ShardClient",
    "UsageError",
    "WorkerError",
    "__version__",
    "carry",
    "init",
    "is_initialized",
    "wrap",
]


def __getattr__(name: str) -> Any:
    # Torch and numpy are imported by those that use them.
    if name in ("DDP", "carry", "wrap"):
        from . import ddp

        return getattr(ddp, name)
    if name == "ShardClient":
        from . import client

        return client.ShardClient
    if name == "DataLoader":
        from . import loader

        return loader.DataLoader
    raise AttributeError(f"module 'antdt' has no attribute {name!r}")

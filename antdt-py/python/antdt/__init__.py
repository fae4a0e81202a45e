"""AntDT for PyTorch: every node busy, every sample counted once.

Five lines in a training script::

    antdt.init()
    loader = antdt.DataLoader(dataset)
    model = antdt.DDP(model)
    optimizer = antdt.wrap(optimizer)

and ``antdt run --nproc-per-node 4 --data samples:60000 train.py``.
"""

import importlib
import re
import sys
from typing import Any

from ._antdt import WorkerError, __version__
from ._job import UsageError, init, is_initialized
from .data import BatchSampler

__all__ = [
    "BatchSampler",
    "DDP",
    "DataLoader",
    "IterableDataset",
    "ShardClient",
    "UsageError",
    "WorkerError",
    "__version__",
    "carry",
    "init",
    "is_initialized",
    "wrap",
]


#: The oldest torch that is supported.
_TORCH = (1, 13)


def _require(package: str, name: str) -> None:
    """Raises ``UsageError`` if a package that this name needs is not there, or too old."""
    try:
        found = importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"antdt.{name} needs {package}, which {sys.executable} cannot import ({error}): pip install {package}"
        ) from error
    numbers = [int(number) for number in re.findall(r"\d+", found.__version__)[:2]]
    if package == "torch" and tuple(numbers) < _TORCH:
        least = ".".join(map(str, _TORCH))
        raise UsageError(
            f"antdt.{name} needs torch {least} or newer, and {sys.executable} has {found.__version__}: pip install 'torch>={least}'"
        )


def __getattr__(name: str) -> Any:
    # Torch and numpy are imported by those that use them.
    module = {
        "DDP": "ddp",
        "carry": "ddp",
        "wrap": "ddp",
        "DataLoader": "loader",
        "IterableDataset": "stream",
        "ShardClient": "client",
    }.get(name)
    if module is None:
        raise AttributeError(f"module 'antdt' has no attribute {name!r}")
    _require("numpy" if module == "client" else "torch", name)
    return getattr(importlib.import_module(f".{module}", __name__), name)

"""The state of a model in an open form: JSON whose tensors are elsewhere, each by its name."""

import json
from typing import Any, Dict, List, Tuple

import torch

from ._job import DTYPES, UsageError


def outlined(state: Any) -> Tuple[str, Dict[str, torch.Tensor]]:
    """Returns the state as JSON, and its tensors in the memory of this process, contiguous, by name."""
    tensors: Dict[str, torch.Tensor] = {}
    return json.dumps(_outlined(state, "", tensors)), tensors


def described(tensor: torch.Tensor) -> Tuple[str, List[int], int]:
    """Returns type, shape and address of a tensor."""
    return DTYPES[_name(tensor.dtype)], list(tensor.shape), tensor.data_ptr()


def restored(outline: str) -> Tuple[Any, List[torch.Tensor]]:
    """Returns the state that was outlined, and its tensors, which are to be filled, in their order."""
    tensors: List[torch.Tensor] = []
    return _restored(json.loads(outline), tensors), tensors


def _name(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[-1]


def _outlined(value: Any, path: str, tensors: Dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = _name(value.dtype)
        if name not in DTYPES:
            raise UsageError(f"{path} is a tensor of {name}, which no checkpoint has: keep it as another type")
        free = path
        while free in tensors:
            free += "_"
        tensors[free] = value.detach().cpu().contiguous()
        return {"tensor": [name, list(value.shape)]}
    if isinstance(value, dict):
        return {
            "items": [
                [_outlined(key, path, tensors), _outlined(item, _below(path, key), tensors)]
                for key, item in value.items()
            ]
        }
    if isinstance(value, tuple):
        return {"tuple": [_outlined(item, _below(path, at), tensors) for at, item in enumerate(value)]}
    if isinstance(value, list):
        return [_outlined(item, _below(path, at), tensors) for at, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(
        f"{path} is a {type(value).__name__}, which cannot travel to another worker or into a checkpoint: "
        "have state_dict() return tensors, numbers, texts, lists and dictionaries"
    )


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _restored(value: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_restored(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        name, shape = value["tensor"]
        made = torch.empty(shape, dtype=getattr(torch, name))
        tensors.append(made)
        return made
    if "tuple" in value:
        return tuple(_restored(item, tensors) for item in value["tuple"])
    return {_restored(key, tensors): _restored(item, tensors) for key, item in value["items"]}

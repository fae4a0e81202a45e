"""Nodes of a Ray cluster: which of them host a job, and which are spare or will be taken away."""

import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

#: Label that Ray gives to each node.
NODE_LABEL = "ray.io/node-id"

#: How often it is looked whether there is room.
LOOK = 0.5

#: How long an elastic job waits for its most hosts once there is room for its fewest.
LAST_CALL = 30.0


class RayError(RuntimeError):
    """A job under Ray cannot be started, or has failed. The message says what to change."""


class RayMissingError(RayError):
    """Ray cannot be imported."""


class PlacementError(RayError):
    """The cluster has too few nodes with room."""


def api() -> Any:
    """The module ``ray``, initialised."""
    try:
        import ray
    except ImportError as error:
        raise RayMissingError(f"Ray cannot be imported ({error}): pip install 'ray>=2.51'") from error
    if not ray.is_initialized():
        raise RayError(
            "Ray is not initialised: call ray.init(address='auto') first, or ray.init() for this machine alone"
        )
    return ray


def options_of(resources: Mapping[str, float]) -> Dict[str, Any]:
    """Options of an actor that needs these resources, which are named as for a placement group."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: Dict[str, Any] = {option: resources.get(name, 0) for name, option in named.items()}
    options["resources"] = {name: amount for name, amount in resources.items() if name not in named}
    return options


def lacks_of(resources: Mapping[str, float], node: Mapping[str, float]) -> List[str]:
    """What a node has too little of."""
    return [
        f"{amount:g} {name} (it has {node.get(name, 0.0):g})"
        for name, amount in resources.items()
        if node.get(name, 0.0) < amount
    ]


def too_few(count: int, resources: Mapping[str, float], nodes: Sequence[Mapping[str, Any]], waited: float) -> str:
    """Why there was no room for so many hosts."""
    alive = [node for node in nodes if node["Alive"]]
    lacking = {node["NodeID"][:8]: lacks_of(resources, node["Resources"]) for node in alive}
    fitting = sum(not lacks for lacks in lacking.values())
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
    text = f"{count} hosts need {count} nodes with {wanted} each, and within {waited:g} s there was no room for them: "
    if fitting >= count:
        return text + f"{fitting} of {len(alive)} nodes are large enough, but others use them; `ray status` shows who"
    text += f"{fitting} of {len(alive)} nodes are large enough"
    for name, lacks in lacking.items():
        if lacks:
            text += f"; node {name} lacks {', '.join(lacks)}"
    return text + "; add nodes, or lower num_hosts or resources_per_host"


def place(
    hosts: Tuple[int, int], resources: Mapping[str, float], without: Sequence[str], limit: float, stop: threading.Event
) -> Tuple[Any, List[str]]:
    """Reserves a node for each host, each another one: as many as there is room for, from the fewest to the most hosts. Returns the
    placement group and the nodes, none of which is in ``without``."""
    ray = api()
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    began, (fewest, count) = time.monotonic(), hosts
    selector = elsewhere(without)
    while True:
        selectors = {"bundle_label_selector": [selector] * count} if selector else {}
        group = placement_group([dict(resources)] * count, strategy="STRICT_SPREAD", **selectors)
        until = began + limit if count == fewest else min(began + limit, time.monotonic() + LAST_CALL)
        while not stop.is_set():
            if group.wait(LOOK):
                nodes = placement_group_table(group)["bundles_to_node_id"]
                return group, [nodes[bundle] for bundle in range(count)]
            if time.monotonic() >= until:
                break
        remove_placement_group(group)
        if stop.is_set():
            raise RayError("the job was stopped before it had its nodes")
        if count == fewest:
            raise PlacementError(too_few(fewest, resources, ray.nodes(), limit))
        fitting = sum(node["Alive"] and not lacks_of(resources, node["Resources"]) for node in ray.nodes())
        count = max(fewest, min(count - 1, fitting))


def elsewhere(nodes: Sequence[str]) -> Dict[str, str]:
    """Label selector of a node that is none of these. An actor that waits for one makes a cluster that scales add one."""
    return {NODE_LABEL: f"!in({','.join(sorted(nodes))})"} if nodes else {}


def draining() -> Dict[str, Optional[float]]:
    """Nodes that will be taken away, and in how many seconds. Ray tells no other way than by this inner call, which Ray Train asks, too;
    without it, no notice is seen."""
    try:
        from ray._private.state import state

        found = state.get_draining_nodes()
    except Exception:
        return {}
    now = time.time()
    return {node: max(0.0, deadline / 1000 - now) if deadline else None for node, deadline in found.items()}


def flag(name: str, value: Any) -> List[str]:
    """A setting as words of a command line; a list is one that may be repeated."""
    word = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [f"{word}={str(value).lower()}"]
    if isinstance(value, (list, tuple)):
        return [part for one in value for part in flag(name, one)]
    return [word, str(value)]


def line_of(error: BaseException) -> str:
    """What an error says, without the traceback of another process."""
    said = str(getattr(error, "cause", None) or error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address

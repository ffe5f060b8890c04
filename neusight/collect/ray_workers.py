"""Workers on the hosts of a Ray cluster: an actor a device, placed wherever one is free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import neusight
from neusight.collect.workers import Post, Worker, WorkerLost, take_post
from neusight.errors import DeviceError


class Actor:
    """What runs on the host: the same bench as in a local process."""

    def __init__(self, post: Post) -> None:
        take_post(post)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of ``workers`` here."""
        return function(*arguments)


class RayWorker:
    """One actor; a new one may be placed on another host."""

    def __init__(self, post: Post, number: int, options: dict[str, Any]) -> None:
        self.post, self.options = post, options
        self.name = f"ray:{number}"
        self._actor = self._placed()

    def run(self, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """In the actor; one that died, wherever and however, is a lost worker."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            return ray.get(self._actor.run.remote(function, *arguments), timeout=limit_s)
        except RayError as error:
            fault = error.cause if isinstance(error, RayTaskError) else error
            raise WorkerLost(_first_line(fault)) from None

    def restart(self) -> None:
        """A new actor, wherever there is room."""
        self.stop()
        self._actor = self._placed()

    def stop(self) -> None:
        """Kill the actor."""
        import ray

        ray.kill(self._actor)

    def _placed(self) -> Any:
        import ray

        return ray.remote(Actor).options(**self.options).remote(self.post)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def ray_workers(address: str, post: Post, count: int = 0) -> list[Worker]:
    """An actor for every GPU of a cluster, or ``count`` of them.

    Args:
        address: of the cluster (``auto``, ``host:port``, ``ray://host:port``); ``local`` begins one on this host.
        post: of all of them; a CPU worker takes one core.
        count: of workers; 0 for every GPU, or for every core.

    Raises:
        DeviceError: Ray is not installed, the cluster cannot be reached, or it has too few devices.
    """
    try:
        import ray
    except ImportError:
        raise DeviceError("Ray is not installed: pip install 'neusight[ray]'") from None
    if not ray.is_initialized():
        _connect(address)
    kind = "CPU" if post.target == "cpu" else "GPU"
    have = int(ray.cluster_resources().get(kind, 0))
    if have < max(1, count):
        raise DeviceError(f"the cluster has {have} {kind}s, not {max(1, count)}: ask for fewer, or add hosts")
    options = {f"num_{kind.lower()}s": 1, "max_restarts": 0}
    return [RayWorker(post, number, options) for number in range(count or have)]


def _connect(address: str) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address == "local":
            ray.init(include_dashboard=False, **quiet)
        else:
            # The hosts run the code of this one; they need PyTorch, not an installation of neusight.
            ray.init(address=address, runtime_env={"py_modules": [neusight]}, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DeviceError(f"no Ray cluster at {address} ({_first_line(error)}): start one with `ray start`") from error

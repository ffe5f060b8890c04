"""Workers on the hosts of a Ray cluster: an actor each, placed wherever there is room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import neusight
from neusight.errors import DeviceError
from neusight.workers.local import Worker, WorkerLost


class Actor:
    """What runs on the host: the same as in a local process."""

    def __init__(self, begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
        if begin is not None:
            begin(*arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module here."""
        return function(*arguments)


class RayWorker:
    """One actor; a new one may be placed on another host."""

    def __init__(
        self, number: int, options: dict[str, Any], begin: Callable[..., None] | None = None, *arguments: Any
    ) -> None:
        self.name, self._options, self._begin = f"ray:{number}", options, (begin, arguments)
        self._actor = self._placed()

    def run(self, limit_s: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
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

        return ray.remote(Actor).options(**self._options).remote(*self._begin)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def ray_workers(
    address: str, count: int = 0, begin: Callable[..., None] | None = None, *arguments: Any, kind: str = "CPU"
) -> list[Worker]:
    """An actor for every device of a cluster, or ``count`` of them.

    Args:
        address: of the cluster (``auto``, ``host:port``, ``ray://host:port``); ``local`` begins one on this host.
        count: of workers; 0 for every device.
        begin: what an actor calls before anything else, with ``arguments``.
        kind: of device that each takes, ``CPU`` for a core, or ``GPU``.

    Raises:
        MissingExtraError: Ray is not installed.
        DeviceError: the cluster cannot be reached, or it has too few devices.
    """
    import ray

    if not ray.is_initialized():
        _connect(address)
    have = int(ray.cluster_resources().get(kind, 0))
    if have < max(1, count):
        raise DeviceError(f"the cluster has {have} {kind}s, not {max(1, count)}: ask for fewer, or add hosts")
    options = {f"num_{kind.lower()}s": 1, "max_restarts": 0}
    return [RayWorker(number, options, begin, *arguments) for number in range(count or have)]


def _connect(address: str) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address == "local":
            ray.init(include_dashboard=False, **quiet)
        else:
            # The hosts run the code of this one; they need what it imports, not an installation of neusight.
            ray.init(address=address, runtime_env={"py_modules": [neusight]}, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DeviceError(f"no Ray cluster at {address} ({_first_line(error)}): start one with `ray start`") from error

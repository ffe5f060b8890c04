"""Processes that work for this one, on this host or, through Ray, on the hosts of a cluster.

A worker does one task at a time and may be lost at any moment: a task can take its process down, or hang, and a host
can go. Who waits for it learns that from ``WorkerLost``, and may have a new one. ``shared`` has a list of tasks done by
all of them, and its answers don't depend on how many there are or which of them are lost.

>>> with hired(jobs=2) as workers:
...     areas = shared(workers, area_of, designs)
"""

from neusight.workers.local import LocalWorker, Worker, WorkerLost
from neusight.workers.sharing import ATTEMPTS, hired, shared

__all__ = ["ATTEMPTS", "LocalWorker", "Worker", "WorkerLost", "hired", "shared"]

"""Makes task attempts slow, and kills some, around the moment at which a data file appears.

On the PYTHONPATH of the executors of test_lost_attempts.py alone. Spark runs a slow attempt a
second time, and kills it when the other one has ended or the job is cancelled.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

MODULE = "lakewright.write.task"


def slow(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, after a pause that is different in each attempt, or a death."""

    def paused(*arguments: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        is_first = context is None or context.attemptNumber() == 0
        chance = random.random()
        if chance < (0.4 if is_first else 0.1):
            time.sleep(random.uniform(0.1, 1.0))
        elif chance > 0.97:
            os._exit(9)
        return step(*arguments)

    return paused


class SlowPublications(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Changes the module when a worker imports it.

    The daemon that workers are forked from must not: libraries that start threads, as Arrow does,
    are to be loaded after the fork.
    """

    def __init__(self) -> None:
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        self._loader.exec_module(module)
        for step in ("before_publish", "delete_if_not_pending"):
            setattr(module.MarkedFile, step, slow(getattr(module.MarkedFile, step)))


sys.meta_path.insert(0, SlowPublications())

"""Makes task attempts slow, and kills some, around the moment at which a data file appears.

On the PYTHONPATH of the executors of `lost_attempts/plays.py` alone. An attempt that is slow there
is run a second time by Spark, and killed when the other one has ended or the job is cancelled.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

CHANCES = os.environ.get("LAKEWRIGHT_TEST_CHANCES", "")


def slow(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, after a pause that is different in each attempt, or a death."""

    def paused(*arguments: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        first = context is None or context.attemptNumber() == 0
        chance = random.random()
        if chance < (0.4 if first else 0.1):
            time.sleep(random.uniform(0.1, 2.0))
        elif chance > 0.97:
            os._exit(9)
        return step(*arguments)

    return paused


if CHANCES:
    from lakewright.write.publish import Publication

    Publication.appearing = slow(Publication.appearing)  # type: ignore[method-assign]
    Publication.verify = slow(Publication.verify)  # type: ignore[method-assign]

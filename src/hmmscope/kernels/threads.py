"""Parallel work on threads, if the work is long enough."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")

#: Parts per thread, and seconds of work that justify a thread.
PARTS, WORTH = 4, 3e-3


def on_threads(run: Callable[[Part], object], parts: Sequence[Part], num_threads: int) -> None:
    """Call `run` for each part, in any order; use several threads if the first call takes long enough."""
    began = time.perf_counter()
    for part in parts[:1]:
        run(part)
    rest, lock = iter(parts[1:]), threading.Lock()

    def take() -> None:
        while True:
            with lock:
                part = next(rest, None)
            if part is None:
                return
            run(part)

    helpers = min(num_threads, len(parts) - 1) - 1
    if helpers < 1 or (time.perf_counter() - began) * (len(parts) - 1) < WORTH:
        take()
        return
    with ThreadPoolExecutor(helpers) as pool:
        helping = [pool.submit(take) for _ in range(helpers)]
        take()
    for one in helping:
        one.result()

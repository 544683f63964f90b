"""Measures what penfold adds to ``subprocess``: ``python bench/cost.py``. Fails if it is more than half of it and 2 ms."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import penfold

ROUNDS = 300


def main() -> int:
    times = {subprocess: [], penfold: []}  # type: dict[object, list[float]]
    # By turns, so that the load of the host is the same for both.
    for _ in range(ROUNDS):
        for module, taken in times.items():
            begun = time.perf_counter()
            module.run(["true"])  # type: ignore[attr-defined]
            taken.append((time.perf_counter() - begun) * 1000)
    plain, ours = (statistics.median(taken) for taken in times.values())
    limit = 1.5 * plain + 2
    print(f"run(['true']): subprocess {plain:.2f} ms, penfold {ours:.2f} ms, limit {limit:.2f} ms (medians of {ROUNDS})")
    return int(ours > limit)


if __name__ == "__main__":
    sys.exit(main())

"""Repetitions of two things in turn, and their medians."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

LEAST_PAIRS = 5
MOST_PAIRS = 100_000


@dataclass(frozen=True)
class Budget:
    """How long to measure a point: a number of pairs, or seconds; and by which clock."""

    seconds: float
    pairs: int | None = None
    clock: Callable[[], int] = time.perf_counter_ns
    least: int = LEAST_PAIRS  # however long they take

    def over(self, done: int, elapsed: float) -> bool:
        """Whether it is enough."""
        if self.pairs is not None:
            return done >= self.pairs
        return done >= MOST_PAIRS or (done >= self.least and elapsed >= self.seconds)


@dataclass(frozen=True)
class Times:
    """Milliseconds of one side."""

    median: float
    least: float


@dataclass(frozen=True)
class Pairs:
    """Both sides."""

    ours: Times
    stock: Times
    pairs: int


def interleaved(
    ours: Callable[[], None],
    stock: Callable[[], None],
    budget: Budget,
    before: Callable[[int], None] | None = None,
) -> Pairs:
    """Time the two in turns, so that what else the machine does meets both alike.

    Both must have run once already. `before(i)` runs untimed before pair i.
    """
    kept: tuple[list[int], list[int]] = ([], [])
    start = time.perf_counter()
    while not budget.over(len(kept[0]), time.perf_counter() - start):
        if before:
            before(len(kept[0]))
        for times, call in zip(kept, (ours, stock), strict=True):
            begin = budget.clock()
            call()
            times.append(budget.clock() - begin)
    sides = (Times(statistics.median(times) / 1e6, min(times) / 1e6) for times in kept)
    return Pairs(*sides, len(kept[0]))

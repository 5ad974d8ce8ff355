"""Summing up what the inputs of products are like, a batch of rows at a time."""

import numpy as np

from . import rotation
from .imatrix import Statistics


class Sums:
    """The statistics of one input, per expert.

    `block`, `seed`: of the rotation it is also measured in; 0 = none. With `gram`, x·xᵀ as well.
    """

    def __init__(self, experts: int, columns: int, block: int, seed: int, gram: bool):
        """All zeros."""
        shape = experts, columns
        self.block, self.seed = block, seed
        self.counts = np.zeros(experts)
        self.sum2, self.largest = np.zeros(shape), np.zeros(shape)
        self.rotated_sum2 = np.zeros(shape) if block else None
        self.rotated_largest = np.zeros(shape) if block else None
        self.gram = np.zeros((experts, columns, columns), np.float32) if gram else None

    def add(self, x: np.ndarray, experts: np.ndarray | None = None) -> None:
        """Take in rows x (rows, columns) of f32.

        `experts` (rows, n): the experts that read each row; None: all rows belong to the first.
        ValueError if a value is not finite.
        """
        if not np.isfinite(x).all():
            raise ValueError("a value is not finite")
        parts = self._parts(len(x), experts)
        for expert, rows in parts:
            self.counts[expert] += len(x) if rows is None else len(rows)
        self._add(x, parts, self.sum2, self.largest)
        if self.block:
            signs = rotation.signs(x.shape[1], self.seed).astype(np.float32)
            blocks = (x * signs).reshape(-1, self.block)
            rotated = (blocks @ rotation.hadamard(self.block)).reshape(x.shape)
            self._add(rotated, parts, self.rotated_sum2, self.rotated_largest)
        if self.gram is not None:
            for expert, rows in parts:
                part = x if rows is None else x[rows]
                self.gram[expert] += part.T @ part

    @staticmethod
    def _parts(count: int, experts: np.ndarray | None) -> list[tuple[int, np.ndarray | None]]:
        """(expert, its rows) for all that have any; None for rows means all of them."""
        if experts is None:
            return [(0, None)] if count else []
        row = np.repeat(np.arange(count), experts.shape[1])
        chosen = experts.reshape(-1)
        order = np.argsort(chosen, kind="stable")
        found, starts = np.unique(chosen[order], return_index=True)
        rows = np.split(row[order], starts[1:])
        return list(zip(found.tolist(), rows, strict=True))

    @staticmethod
    def _add(x: np.ndarray, parts, sum2: np.ndarray, largest: np.ndarray) -> None:
        magnitude = np.abs(x)
        squares = magnitude * magnitude
        for expert, rows in parts:
            of = squares if rows is None else squares[rows]
            sum2[expert] += of.sum(axis=0, dtype=np.float64)
            most = magnitude if rows is None else magnitude[rows]
            np.maximum(largest[expert], most.max(axis=0), out=largest[expert])

    def statistics(self) -> Statistics:
        """The sums so far."""
        return Statistics(
            self.counts, self.sum2, self.largest, self.rotated_sum2, self.rotated_largest
        )

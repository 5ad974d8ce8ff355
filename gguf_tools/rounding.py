"""How the rows of a weight are rounded: to the nearest, or with GPTQ, with what a text showed.

Everything known of a weight's inputs is given in the basis in which it is rounded.
"""

import functools
import threading

import numpy as np

from . import experts, gptq, int8, rotation
from .errors import OctetError, shown
from .imatrix import Importance
from .plan import Step

METHODS = ("nearest", "gptq")
_CACHE_WEIGHTS = 1 << 16  # rows are rotated in parts that stay in a core's cache


class Rounding:
    """The rounding of one conversion. `weights` None: nothing is known of inputs.

    `seed`: of the rotation signs.
    """

    def __init__(self, method: str = "nearest", weights: Importance | None = None, seed: int = 0):
        """`method`: one of METHODS; gptq needs `weights` with gram matrices."""
        self.gptq = method == "gptq"
        self.weights, self.seed = weights, seed
        self._lock = threading.Lock()
        # As many as jobs are in flight on a few cores; K·K numbers each.
        self._factors = functools.lru_cache(maxsize=4)(self._factor)
        self._tables = functools.lru_cache(maxsize=4)(self._table)

    def notes(self, steps: list[Step]) -> list[str]:
        """What the importance matrix does not know of what will be rounded with it."""
        found: list[str] = []
        if self.weights is None:
            return found
        for step in steps:
            if not step.rounded or not (self.gptq or self._weighs(step)):
                continue
            name = shown(step.tensor.name)
            known = self.weights.statistics(step.tensor)
            gram = self.weights.has_gram(step.tensor)
            if known is None:
                found.append(f"{name}: not in the importance matrix, rounded without")
            elif not known.seen.all():
                those = ", ".join(map(str, np.flatnonzero(~known.seen)))
                found.append(f"{name}: no importance for expert {those}: all columns alike")
            elif self.gptq and not gram:
                found.append(f"{name}: no gram matrix in the importance matrix: to the nearest")
            elif step.rotation and _smoothed(step) and not gram:
                found.append(f"{name}: rotated and smoothed, which needs --gram: all columns alike")
        return found

    def rows(self, step: Step, weights: np.ndarray, expert: int) -> bytes:
        """Rows of one expert (0 of a dense weight) as the file holds them.

        `weights`: f32 or f64, not yet rotated. ValueError if they cannot be held.
        """
        u = self._shared(self._factors, step, expert) if self.gptq else None
        if step.to == "int8":
            return self._int8(step, weights, u)
        rotated = rotation.rotate(weights, step.rotation, self.seed) if step.rotation else weights
        if u is not None:
            return gptq.round_codebook(step.type, rotated, u)
        table = self._shared(self._tables, step) if self.weights else None
        return experts.quantize(step.type, rotated.astype(np.float32), table, expert)

    def _int8(self, step: Step, weights: np.ndarray, u) -> bytes:
        if u is not None:
            rotated = rotation.rotate(weights, step.rotation, self.seed)
            return int8.pack(*gptq.round_int8(rotated, step.scale_group, u))
        part = max(1, _CACHE_WEIGHTS // step.tensor.columns)
        out = []
        for at in range(0, len(weights), part):
            rotated = rotation.rotate(weights[at : at + part], step.rotation, self.seed)
            out.append(int8.pack(*int8.quantize(rotated, step.scale_group)))
        return b"".join(out)

    @staticmethod
    def _weighs(step: Step) -> bool:
        return step.role in ("gate_up", "down") and step.to != "int8"

    def _shared(self, cached, step: Step, *more):
        # All jobs of a tensor need the same one at the same time: made once, the others wait.
        with self._lock:
            return cached(_Key(step), *more)

    def _table(self, key: "_Key") -> np.ndarray | None:
        """Importance of the columns, f32 (experts, columns)."""
        step = key.step
        if not (step.rotation and _smoothed(step)):
            table, _ = self.weights.of(step.tensor, step.rotation, self.seed)
            if table is None or not _smoothed(step):
                return table
            return step.smoothing.importance(step.tensor.name, table)
        count = step.tensor.shape[2] if len(step.tensor.shape) > 2 else 1
        grams = [self._gram(step, expert) for expert in range(count)]
        if any(gram is None for gram in grams):
            return None
        table = np.array([np.diagonal(gram) for gram in grams])
        return np.where(table.any(axis=1, keepdims=True), table, 1).astype(np.float32)

    def _gram(self, step: Step, expert: int) -> np.ndarray | None:
        """Mean of x·xᵀ of what a rounded weight is multiplied with."""
        gram = self.weights.gram(step.tensor, expert)
        if gram is not None and _smoothed(step):
            factors = step.smoothing.columns[step.tensor.name]
            factors = factors[min(expert, len(factors) - 1)]
            gram = gram / np.outer(factors, factors)
        if gram is not None and step.rotation:
            once = rotation.rotate(gram, step.rotation, self.seed)
            gram = rotation.rotate(np.ascontiguousarray(once.T), step.rotation, self.seed)
        return gram

    def _factor(self, key: "_Key", expert: int) -> np.ndarray | None:
        step = key.step
        gram = self._gram(step, expert)
        try:
            return None if gram is None else gptq.factor(gram)
        except np.linalg.LinAlgError:
            raise OctetError(
                f"{self.weights.model.path}: the gram matrix of {shown(step.tensor.name)} cannot "
                "be one: measure it again with octet calibrate --gram"
            ) from None


def _smoothed(step: Step) -> bool:
    """Whether the input of a step's product is another than the one that was measured."""
    return step.smoothing is not None and step.tensor.name in step.smoothing.columns


class _Key:
    """A step as a key of a cache: equal if it is of the same tensor."""

    def __init__(self, step: Step):
        self.step = step

    def __hash__(self):
        return hash(self.step.tensor.name)

    def __eq__(self, other):
        return self.step.tensor.name == other.step.tensor.name

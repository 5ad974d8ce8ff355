"""Smoothing: moving scale between channels of activations and weights before they are rounded.

What a product computes stays the same, y = Σ (x_j / s_j) · (w_j · s_j). Where channel j of x is
much larger than the others it takes the grid of a whole row for itself; s_j makes it smaller and
the weights that read it larger. folds.py says where 1/s and s go in a file.

- smoothquant: s_j = X_j^alpha / W_j^(1 − alpha) for the input of a norm's readers (Xiao et al.,
  SmoothQuant, arXiv 2211.10438, eq. 4), X and W being how large activations and weights are there.
- updown: s_j = sqrt(W_j / X_j) for the input of a down projection, X being how large it is or,
  without data, ‖up[j, :]‖. This moves no error into up, whose rows have scales of their own.

How large: the largest magnitude, as in the paper, where the product is not rotated. A rotation
makes every value a sum over a block, so that it is sums of squares that count: there X_j is the
root of the mean of x_j², and W_j the norm of the column. With alpha = 0.5 that makes the product of
both sums the smallest there is (Cauchy–Schwarz).

Where a weight that takes s keeps its F16 or BF16, s is a power of two, so that it is not rounded
for the smoothing alone. (Elsewhere that would give away a tenth of what smoothing gains.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .errors import OctetError, shown
from .experts import jobs
from .folds import NormFold, UpDownFold
from .imatrix import Importance, Statistics
from .shard import Tensor

FLOATS = ("f32", "f16", "bf16")
EXACT = ("f32", "bf16")  # take any power of two without rounding: F16 soon has subnormals
_WEIGHTS = 1 << 20  # that are read at once


@dataclass
class Smoothing:
    """Factors of tensors, by name. Arrays of f64.

    `columns` (experts or 1, K): for the columns of each expert of a weight; norms and biases have
    one row, or one per expert. `rows` (rows over all experts,): for the rows of a weight.
    """

    label: str = "none"  # octet.smoothing
    alpha: float | None = None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)

    def touches(self, name: str) -> bool:
        """Whether a tensor changes."""
        return name in self.columns or name in self.rows

    def apply(self, tensor: Tensor, weights: np.ndarray, first: int) -> np.ndarray:
        """Rows of a tensor from `first` on as f64, with their factors."""
        out = weights.astype(np.float64)
        columns, rows = self.columns.get(tensor.name), self.rows.get(tensor.name)
        if columns is not None:
            out *= columns[np.arange(first, first + len(out)) // (tensor.rows // len(columns))]
        if rows is not None:
            out *= rows[first : first + len(out), None]
        return out

    def importance(self, name: str, table: np.ndarray) -> np.ndarray:
        """Mean squares of the input's channels (experts, K), as they are behind the smoothing."""
        return table if name not in self.columns else table / self.columns[name] ** 2

    def powers_of_two(self) -> "Smoothing":
        """The same by the nearest powers of two: a float model computes the same bits."""

        def nearest(of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            # Symmetric about 1, so that s and 1/s still cancel
            return {name: np.exp2(np.rint(np.log2(factors))) for name, factors in of.items()}

        return Smoothing(self.label, self.alpha, nearest(self.columns), nearest(self.rows))

    def joined(self, other: "Smoothing") -> "Smoothing":
        """Both together."""
        if not self.columns:
            return other
        out = Smoothing(
            "+".join(sorted({self.label, other.label} - {"none"})),
            other.alpha if self.alpha is None else self.alpha,
            dict(self.columns),
            dict(self.rows),
        )
        for mine, others in ((out.columns, other.columns), (out.rows, other.rows)):
            for name, factors in others.items():
                mine[name] = mine[name] * factors if name in mine else factors
        return out


def power_of_two(s: np.ndarray) -> np.ndarray:
    """The nearest powers of two by ratio, the larger of two that are equally near."""
    # log2 of a tie, 2^(n + 1/2), can come out a little low
    return np.exp2(np.floor(np.log2(s) + (0.5 + 1e-9)))


def factors(s: np.ndarray, tensors: list[Tensor], treatment: "Treatment") -> np.ndarray:
    """s as it can be folded into these tensors: as F32 has it, or as a power of two."""
    if all(treatment.rounded(t) or t.type.name == "f32" for t in tensors):
        return s.astype(np.float32).astype(np.float64)
    return power_of_two(s)


def smoothquant(x: np.ndarray, w: np.ndarray, alpha: float) -> np.ndarray:
    """s of channels from the magnitudes of activations and weights; 1 where either is zero."""
    s = np.ones(x.shape)
    alive = (x > 0) & (w > 0)
    s[alive] = x[alive] ** alpha / w[alive] ** (1 - alpha)
    return s


@dataclass
class Treatment:
    """What becomes of the weights that a smoothing is for.

    `rounded(tensor)`: whether it is rounded. `rotated(tensor)`: whether the product is rotated.
    """

    rounded: Callable[[Tensor], bool]
    rotated: Callable[[Tensor], bool]

    def can_take(self, tensor: Tensor) -> bool:
        """Whether a tensor can be scaled without being rounded for it alone."""
        return self.rounded(tensor) or tensor.type.name in FLOATS


def norm_smoothing(
    folds: list[NormFold],
    importance: Importance,
    alpha: float,
    treatment: Treatment,
    magnitudes: "Magnitudes",
) -> Smoothing:
    """SmoothQuant of every norm that has a reader that is rounded."""
    out = Smoothing("smoothquant", alpha)
    for fold in folds:
        rounded = [r for r in fold.readers if treatment.rounded(r)]
        if not rounded or not all(map(treatment.can_take, fold.norm + fold.readers)):
            continue
        # A router reads every token, the experts only some: what any of them saw counts.
        known = _known(importance, fold.readers)
        if all(map(treatment.rotated, rounded)):
            total = sum(s.counts.sum() for s in known)
            x = np.sqrt(sum(s.sum2.sum(axis=0) for s in known) / max(total, 1))
            rows = sum(r.rows for r in rounded)
            w = np.sqrt(sum((magnitudes.column_norms(r) ** 2).sum(axis=0) for r in rounded) / rows)
        else:
            x = np.max([_largest(importance, s).max(axis=0) for s in known], axis=0)
            w = np.max([magnitudes.columns(r).max(axis=0) for r in rounded], axis=0)
        s = factors(smoothquant(x, w, alpha), fold.norm + fold.readers, treatment)
        for tensor in fold.norm:
            out.columns[tensor.name] = 1 / s[None]
        for tensor in fold.readers:
            out.columns[tensor.name] = s[None]
    return out


def up_down_smoothing(
    folds: list[UpDownFold],
    importance: Importance | None,
    treatment: Treatment,
    magnitudes: "Magnitudes",
) -> Smoothing:
    """The scaling of each pair of up and down whose down projection is rounded.

    By what calibration saw, or without it by the weights alone. An expert that calibration never
    reached is left as it is.
    """
    out = Smoothing("updown")
    for fold in folds:
        tensors = [fold.up, fold.down, *([] if fold.bias is None else [fold.bias])]
        if not treatment.rounded(fold.down) or not all(map(treatment.can_take, tensors)):
            continue
        down = magnitudes.column_norms(fold.down)
        experts, width = down.shape
        if importance is None:
            x = magnitudes.row_norms(fold.up).reshape(experts, -1)[:, fold.first :]
        elif treatment.rotated(fold.down):
            x = np.sqrt(_known(importance, [fold.down])[0].mean2)
        else:
            x = _largest(importance, _known(importance, [fold.down])[0])
            down = magnitudes.columns(fold.down)
        s = factors(smoothquant(down, x, 0.5), tensors, treatment)
        out.columns[fold.down.name] = 1 / s
        rows = np.ones((experts, fold.first + width))
        rows[:, fold.first :] = s
        out.rows[fold.up.name] = rows.reshape(-1)
        if fold.bias is not None:
            out.columns[fold.bias.name] = rows
    return out


def _known(importance: Importance, weights: list[Tensor]) -> list[Statistics]:
    found = [s for s in map(importance.statistics, weights) if s is not None]
    if not found:
        raise OctetError(
            f"{importance.model.path}: does not know {shown(weights[0].name)}: measure it on this "
            "model with octet calibrate"
        )
    return found


def _largest(importance: Importance, known: Statistics) -> np.ndarray:
    if known.largest is None:
        raise OctetError(
            f"{importance.model.path}: has no ranges, only importance: write it with octet "
            "calibrate"
        )
    return known.largest


class Magnitudes:
    """How large the weights of each column and row are, read once per tensor."""

    def __init__(self):
        """Nothing read yet."""
        self._known: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def columns(self, tensor: Tensor) -> np.ndarray:
        """max|w| of each column, (experts, K)."""
        return self._of(tensor)[0]

    def column_norms(self, tensor: Tensor) -> np.ndarray:
        """2-norm of each column, (experts, K)."""
        return np.sqrt(self._of(tensor)[1])

    def row_norms(self, tensor: Tensor) -> np.ndarray:
        """2-norm of each row, (rows over all experts,)."""
        return np.sqrt(self._of(tensor)[2])

    def _of(self, tensor: Tensor):
        if tensor.name not in self._known:
            experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
            largest, sums = (np.zeros((experts, tensor.columns)) for _ in range(2))
            rows = np.zeros(tensor.rows)
            step = max(1, _WEIGHTS // tensor.columns)
            for expert, first, count in jobs(tensor, step):
                w = tensor.floats(first, count).astype(np.float64)
                np.maximum(largest[expert], np.abs(w).max(axis=0), out=largest[expert])
                squares = w * w
                sums[expert] += squares.sum(axis=0)
                rows[first : first + count] = squares.sum(axis=1)
            if not np.isfinite(rows).all():
                raise OctetError(
                    f"{tensor.shard.path}: {shown(tensor.name)} holds NaN or infinity: the model "
                    "is damaged"
                )
            self._known[tensor.name] = largest, sums, rows
        return self._known[tensor.name]

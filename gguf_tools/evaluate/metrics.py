"""Comparing logits: KL divergence, top-1 agreement, perplexity, and answers to questions.

Everything is computed in f64 from f32 logits, over the whole vocabulary, in nats. Equal logits
give exactly 0.
"""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..errors import OctetError

# Positions that are drawn together when drawing again: how far a token is from what is likely says
# something about the next ones too.
_RUN = 32
_DRAWS = 1000
UNKNOWN = -1  # a target that is not known: the position has no next token

_pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))


@dataclass
class Comparison:
    """Per position: KL(control ‖ candidate), whether both have the same most likely token, and
    minus the logarithm of the next token's probability (NaN where that is not known)."""

    kl: np.ndarray
    same_top: np.ndarray
    control_loss: np.ndarray
    candidate_loss: np.ndarray

    def table(self) -> np.ndarray:
        """All of it as f64 (positions, 4)."""
        columns = self.kl, self.same_top, self.control_loss, self.candidate_loss
        return np.stack([c.astype(np.float64) for c in columns], axis=1)

    @classmethod
    def of_table(cls, table: np.ndarray) -> "Comparison":
        """What `table` gave, of any shape."""
        kl, same_top, control, candidate = table.reshape(-1, 4).T
        return cls(kl, same_top != 0, control, candidate)

    def part(self, start: int, stop: int) -> "Comparison":
        """Positions start … stop − 1."""
        return Comparison(*(getattr(self, n)[start:stop] for n in self.__dataclass_fields__))


def compare(control: np.ndarray, candidate: np.ndarray, targets) -> Comparison:
    """Compare logits, both (positions, vocabulary), given the token that follows each position.

    A NaN, or logits without a largest one, is an OctetError: no divergence is defined for it.
    """
    if control.shape != candidate.shape or len(targets) != len(control):
        raise ValueError(f"{control.shape}, {candidate.shape}, {len(targets)} targets")
    rows = list(_pool.map(_row, control, candidate, targets))
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    return Comparison(*(np.array(column) for column in columns))


def joined(parts: list[Comparison]) -> Comparison:
    """All positions of several comparisons, in order."""
    names = Comparison.__dataclass_fields__
    return Comparison(*(np.concatenate([getattr(p, n) for p in parts] or [[]]) for n in names))


_kept = threading.local()


def _row(control: np.ndarray, candidate: np.ndarray, target: int):
    size = len(control)
    if getattr(_kept, "size", 0) != size:
        # New memory for every row would cost more than the arithmetic.
        _kept.size, _kept.buffers = size, [np.empty(size) for _ in range(3)]
    p, q, weight = _kept.buffers
    top_p, top_q = _shift(control, p), _shift(candidate, q)
    # Other first: its exponentials are only needed for their sum.
    log_q = np.log(np.exp(q, out=weight).sum())
    total = np.exp(p, out=weight).sum()
    log_p = np.log(total)
    losses = (np.nan, np.nan)
    if target != UNKNOWN:
        losses = (float(log_p - p[target]), float(log_q - q[target]))
    with np.errstate(invalid="ignore"):
        difference = np.subtract(p, q, out=p)
    # Where the control sees no chance at all (−∞ or below 1e-323) nothing can diverge.
    difference[weight == 0] = 0
    kl = float(np.dot(weight, difference) / total - (log_p - log_q))
    # A divergence is never negative; its rounding error can be.
    return max(kl, 0.0), top_p == top_q, *losses


def _shift(logits: np.ndarray, out: np.ndarray) -> int:
    """Logits minus the largest, in f64; the index of the largest."""
    top = int(logits.argmax())  # of a NaN, if there is one
    if not np.isfinite(logits[top]):
        raise OctetError("gives logits that are not finite")
    np.subtract(logits, np.float64(logits[top]), out=out)
    return top


def spread(values: np.ndarray) -> dict | None:
    """Mean, median, 95th and 99th percentile, maximum; None of nothing."""
    if not len(values):
        return None
    median, p95, p99 = np.percentile(values, [50, 95, 99])
    return {
        "mean": float(np.mean(values)),
        "median": float(median),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(np.max(values)),
    }


def interval(values: np.ndarray, run: int = _RUN, total: bool = False) -> list[float] | None:
    """95 % interval of a mean (or `total`) by bootstrap: draws, with return, of runs of values.

    Percentiles 2.5 and 97.5 over 1000 draws of as many runs as there are; None of nothing. The same
    values give the same interval.
    """
    if not len(values):
        return None
    starts = np.arange(0, len(values), run)
    sums = np.add.reduceat(values.astype(np.float64), starts)
    sizes = np.diff(np.append(starts, len(values)))
    drawn = np.random.default_rng(0).integers(len(starts), size=(_DRAWS, len(starts)))
    found = sums[drawn].sum(axis=1) / (1 if total else sizes[drawn].sum(axis=1))
    low, high = np.quantile(found, [0.025, 0.975])
    return [float(low), float(high)]


def by_position(first: list[int], kl: list[np.ndarray], bins: int = 16) -> list[list[float]]:
    """Mean divergence by how far into its context a position is: [[middle, mean], …].

    `first`: where each item's first compared position is; `kl`: of its positions.
    """
    if not kl:
        return []
    at = np.concatenate([f + np.arange(len(k)) for f, k in zip(first, kl, strict=True)])
    values = np.concatenate(kl)
    edges = np.linspace(at.min(), at.max() + 1, min(bins, int(np.ptp(at)) + 1) + 1)
    which = np.searchsorted(edges, at, side="right") - 1
    return [
        [float((edges[b] + edges[b + 1] - 1) / 2), float(values[which == b].mean())]
        for b in range(len(edges) - 1)
        if (which == b).any()
    ]


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p of `wins` against `losses` if both were equally likely (exact binomial).

    For paired answers: those that became right against those that became wrong.
    """
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**n)


def perplexity_ratio(found: Comparison) -> float | None:
    """Perplexity of the candidate over that of the control, where the next token is known."""
    known = ~np.isnan(found.control_loss)
    if not known.any():
        return None
    return float(np.exp(np.mean(found.candidate_loss[known] - found.control_loss[known])))


def choice(logits: np.ndarray, options: list[int]) -> int:
    """Which option's token has the largest logit; the first of equals."""
    return int(np.argmax(logits[options]))


def answers(control: list[int], candidate: list[int], labels: list[int]) -> dict:
    """Accuracy of the candidate, and how its answers differ from the control's.

    `flips` are answers that became right or wrong; `answer_changes` also counts those that went
    from one wrong option to another.
    """
    a, b, right = (np.array(x, int) for x in (control, candidate, labels))
    to_wrong = int(np.sum((a == right) & (b != right)))
    to_right = int(np.sum((a != right) & (b == right)))
    wrong_to_wrong = int(np.sum((a != right) & (b != right) & (a != b)))
    return {
        "n": len(right),
        "accuracy": float(np.mean(b == right)),
        "answer_changes": int(np.sum(a != b)),
        "flips": to_wrong + to_right,
        "flips_interval": interval((a == right) != (b == right), run=1, total=True),
        "sign_test_p": sign_test(to_right, to_wrong),
        "correct_to_incorrect": to_wrong,
        "incorrect_to_correct": to_right,
        "wrong_to_wrong": wrong_to_wrong,
    }

"""The error of every product alone: how far its output is from the control's on the same input.

Here nothing adds up over layers, so it names the weights that lose most. What a candidate computes
is worked out from its file as docs/arithmetic.md says, in f32; the order of sums does not matter at
this size.
"""

import numpy as np

from .. import metadata, rotation
from ..reader import Model
from ..shard import Tensor
from . import unfolded

_WEIGHTS = 1 << 22  # that are decoded at once


def errors(control: Model, candidate: Model, samples, rounds: bool) -> list[dict]:
    """Relative errors of the products that change, the largest first: {"name", "error"}.

    error = sqrt(Σ(y' − y)² / Σy²), y being the control's outputs for the sampled inputs and y' the
    candidate's. `samples`: what llama_octet.layer_inputs keeps, as a mapping. `rounds`: whether the
    candidate rounds the inputs of quantized weights to 8 bits. If the candidate is smoothed, it is
    given the inputs that its smoothing makes of them, and its outputs are measured without it.
    """
    octet = metadata.read(candidate) or metadata.Octet("")
    smoothing = unfolded.smoothing(control, candidate)
    found = []
    for name, first in zip(samples["names"].tolist(), samples["first"].tolist(), strict=True):
        before, after = control.tensors.get(name), candidate.tensors.get(name)
        if before is None or after is None or before.shape != after.shape:
            continue
        listed = octet.tensors.get(name)
        if listed is None and before.type.name == after.type.name:
            continue
        x, experts = samples[first], None
        if f"{first}@experts" in samples:
            experts = samples[f"{first}@experts"]
        block, group = listed or (0, 32)
        columns, scale = smoothing.columns.get(name), smoothing.rows.get(name)
        wrong, all_of_it = 0.0, 0.0
        for expert, rows in _rows(after, x, experts):
            given = x[rows]
            fed = given
            if columns is not None:
                fed = (fed / columns[min(expert, len(columns) - 1)]).astype(np.float32)
            if block:
                fed = rotation.rotate(fed, block, octet.seed).astype(np.float32)
            if rounds and after.type.quantized:
                fed = rounded(fed, group)
            for part, y, z in _outputs(before, after, expert, given, fed):
                if scale is not None:
                    z = z / scale[part]
                wrong += float(np.square(z - y).sum())
                all_of_it += float(np.square(y).sum())
        if all_of_it > 0:
            found.append({"name": name, "error": float(np.sqrt(wrong / all_of_it))})
    return sorted(found, key=lambda one: -one["error"])


def rounded(x: np.ndarray, group: int) -> np.ndarray:
    """Rows of f32 as their 8-bit values stand for them, one scale per `group` columns (0 = all)."""
    parts = x.reshape(len(x), -1, group or x.shape[1])
    d = np.abs(parts).max(axis=2, keepdims=True) / np.float32(127)
    q = np.rint(np.divide(parts, d, out=np.zeros_like(parts), where=d > 0))
    return (q * d).reshape(x.shape)


def _rows(weight: Tensor, x: np.ndarray, experts: np.ndarray | None):
    """(expert, the rows that it reads)."""
    if experts is None:
        yield 0, slice(None)
        return
    for expert in range(weight.shape[2]):
        rows = np.flatnonzero((experts == expert).any(axis=1))
        if len(rows):
            yield expert, rows


def _outputs(before: Tensor, after: Tensor, expert: int, x: np.ndarray, fed: np.ndarray):
    """Outputs of both, some rows of the weight at a time, and which rows these are."""
    count, step = before.shape[1], max(1, _WEIGHTS // before.columns)
    for row in range(0, count, step):
        rows = min(step, count - row)
        at = expert * count + row
        part = slice(at, at + rows)
        yield part, x @ before.floats(at, rows).T, fed @ after.floats(at, rows).T

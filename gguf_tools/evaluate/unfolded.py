"""What a smoothing was, found by comparing a smoothed file with the model it was made from."""

import numpy as np

from .. import folds, metadata, rotation
from ..experts import jobs
from ..reader import Model
from ..smoothing import Smoothing

_WEIGHTS = 1 << 20  # that are read at once


def smoothing(control: Model, candidate: Model) -> Smoothing:
    """The factors of every product of `candidate`; none for a file without smoothing.

    Nor are there any where the candidate, being another model, lacks what the control has.

    Norms hold theirs in F32. Those of an up projection are what its rounded rows are multiples of,
    which is as exact as rounding is even: to 0.0003 for int8 rows of 640.
    """
    octet = metadata.read(candidate)
    out = Smoothing()
    if octet is None or octet.smoothing == "none":
        return out
    out.label, out.alpha = octet.smoothing, octet.alpha
    for fold in folds.norm_folds(control, octet.base_architecture)[0]:
        if not _has(candidate, fold.norm[0]):
            continue
        gain = fold.norm[0].floats(0, 1)[0].astype(np.float64)
        now = candidate.tensors[fold.norm[0].name].floats(0, 1)[0].astype(np.float64)
        s = np.divide(gain, now, out=np.ones_like(gain), where=now != 0)
        for reader in fold.readers:
            out.columns[reader.name] = s[None]
    for fold in folds.up_down_folds(control, octet.base_architecture)[0]:
        if not _has(candidate, fold.up):
            continue
        rows = _rows(fold.up, candidate, octet, out)
        experts = fold.up.shape[2] if len(fold.up.shape) > 2 else 1
        out.rows[fold.up.name] = rows
        out.columns[fold.down.name] = 1 / rows.reshape(experts, -1)[:, fold.first :]
    return out


def _has(candidate: Model, tensor) -> bool:
    same = candidate.tensors.get(tensor.name)
    return same is not None and same.shape == tensor.shape


def _rows(up, candidate: Model, octet: metadata.Octet, known: Smoothing) -> np.ndarray:
    after = candidate.tensors[up.name]
    block = octet.tensors.get(up.name, (0, 0))[0]
    rows = np.ones(up.rows)
    for _, first, count in jobs(up, max(1, _WEIGHTS // up.columns)):
        w = known.apply(up, up.floats(first, count), first)
        w = rotation.rotate(w, block, octet.seed)
        now = after.floats(first, count).astype(np.float64)
        size = np.square(w).sum(axis=1)
        s = np.divide((w * now).sum(axis=1), size, out=np.ones(count), where=size > 0)
        rows[first : first + count] = np.where(s > 0, s, 1)
    return rows

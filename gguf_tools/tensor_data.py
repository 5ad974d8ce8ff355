"""The data of a converted file: read, changed and written on all cores, in the order of the file.

Rows are worked on in jobs of at most a million weights, so memory does not grow with the file, its
tensors or the cores.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from . import experts, ggml, plan, writer
from .errors import OctetError, shown
from .rounding import Rounding
from .smoothing import FLOATS

_JOB_WEIGHTS = 1 << 20
_SMALLEST_JOB = 1 << 17
_COPY_BYTES = 8 << 20


def write(file, steps: list[plan.Step], rounder: Rounding, threads: int, wrote) -> None:
    """Run all jobs of all steps, a few ahead of the writer, and write their results in order."""
    pool = ThreadPoolExecutor(threads)
    try:
        ahead: deque = deque()

        def write_next() -> None:
            data = ahead.popleft().result()
            file.write(data)
            wrote(len(data))

        # Many threads get smaller jobs: what is in flight stays the same.
        weights = min(_JOB_WEIGHTS, max(_SMALLEST_JOB, 4 * _JOB_WEIGHTS // threads))
        for job in _jobs(steps, rounder, weights):
            ahead.append(pool.submit(*job))
            if len(ahead) > threads:
                write_next()
        while ahead:
            write_next()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _jobs(steps, rounder, weights):
    """All work in the order of the file, as functions with arguments that return bytes."""
    for step in steps:
        tensor = step.tensor
        rows_per_job = max(1, weights // tensor.columns)
        parts = (
            (row, min(rows_per_job, tensor.rows - row))
            for row in range(0, tensor.rows, rows_per_job)
        )
        if step.copy:
            for at in range(0, tensor.size, _COPY_BYTES):
                size = min(_COPY_BYTES, tensor.size - at)
                yield tensor.shard.read, tensor.start + at, size
        elif step.to in FLOATS:
            for part in parts:
                yield _float_rows, step, *part
        else:
            for expert, *part in experts.jobs(tensor, rows_per_job):
                yield _rounded_rows, step, rounder, expert, *part
        if writer.padding(step.size):
            yield bytes, writer.padding(step.size)


def _floats(step: plan.Step, row: int, rows: int) -> np.ndarray:
    weights = step.tensor.floats(row, rows)
    finite = np.isfinite(weights)
    if not finite.all():
        at = row + int(np.flatnonzero(~finite.all(axis=1))[0])
        raise OctetError(
            f"{step.tensor.shard.path}: {shown(step.tensor.name)} holds NaN or infinity in row "
            f"{at}: the model is damaged; nothing was written"
        )
    return step.smoothing.apply(step.tensor, weights, row) if step.smoothing else weights


def _float_rows(step: plan.Step, row: int, rows: int) -> bytes:
    try:
        return ggml.quantize(step.type, _floats(step, row, rows), None)
    except ValueError as error:
        raise _refuse(step, error) from None


def _refuse(step: plan.Step, error: ValueError) -> OctetError:
    return OctetError(
        f"{step.tensor.shard.path}: {shown(step.tensor.name)} cannot become {step.to}: {error} "
        "(give it to --keep)"
    )


def _rounded_rows(step: plan.Step, rounder: Rounding, expert: int, row: int, rows: int) -> bytes:
    weights = _floats(step, row, rows)
    try:
        return rounder.rows(step, weights, expert)
    except ValueError as error:
        raise _refuse(step, error) from None

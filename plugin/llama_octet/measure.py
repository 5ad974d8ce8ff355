"""How far candidates are from a model on a text: the mean KL that `octet convert` decides by.

As `octet eval` measures it, without the rest: the model's logits are kept on disk, and every
candidate runs in a process of its own.
"""

import contextlib
import os
import shutil
import tempfile

import numpy as np

from .errors import OctetError, UsageError
from .eval_runs import Run, Spec, progress
from .gguf_tools.evaluate import inputs, metrics

CHUNK = 256  # tokens that are read in one context


class Yardstick:
    """A model's logits on the first `positions` of a text. Use as a context manager."""

    def __init__(self, model: str, text_path: str, positions: int, threads: int):
        """Run the model in stock llama.cpp."""
        self.threads = threads
        text = inputs.read_text(text_path)[: 64 * positions]
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(tempfile.TemporaryFile())
            with Run(_spec(model, stock=True), CHUNK, threads) as run:
                self.items = inputs.chunks(run.tokenize(text), run.bos, CHUNK, 0, positions)
                if not self.items:
                    raise UsageError(f"{text_path}: too short to measure on")
                self._check_space(run.vocab)
                for item in progress(self.items, f"running {os.path.basename(model)}"):
                    for logits in run.logits(item):
                        self._file.write(logits)
            self._file.flush()
            self._stack = stack.pop_all()

    def __enter__(self):
        """The yardstick itself."""
        return self

    def __exit__(self, *_):
        """Remove the logits."""
        self._stack.close()

    @property
    def positions(self) -> int:
        """How many positions are compared."""
        return sum(item.positions for item in self.items)

    def kl(self, candidate: str) -> float:
        """Mean KL(model ‖ candidate) in nats; the candidate runs in the plugin."""
        found = []
        for control, logits, targets in self._pairs(_spec(candidate, stock=False)):
            try:
                found.append(metrics.compare(control, logits, targets).kl)
            except OctetError as why:
                raise OctetError(f"{candidate}: {why}") from None
        return float(np.concatenate(found).mean())

    def largest_difference(self, candidate: str) -> float:
        """Largest difference of two logits, relative to the largest logit; both run in stock."""
        most = size = 0.0
        for control, logits, _ in self._pairs(_spec(candidate, stock=True)):
            if not np.isfinite(logits).all():
                raise OctetError(f"{candidate}: gives logits that are not finite")
            most = max(most, float(np.abs(control - logits).max()))
            size = max(size, float(np.abs(control).max()))
        return most / size if size else 0.0

    def _pairs(self, spec: Spec):
        self._file.seek(0)
        with Run(spec, CHUNK, self.threads) as run:
            for item in progress(self.items, "comparing"):
                at = 0
                for logits in run.logits(item):
                    control = np.empty_like(logits)
                    self._file.readinto(memoryview(control).cast("B"))
                    yield control, logits, item.targets[at : at + len(logits)]
                    at += len(logits)

    def _check_space(self, vocab: int) -> None:
        needed = self.positions * vocab * 4
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise OctetError(
                f"{folder}: the model's logits need {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are "
                "free: set TMPDIR to another folder"
            )


def _spec(path: str, stock: bool) -> Spec:
    return Spec(os.fspath(path), os.fspath(path), stock)

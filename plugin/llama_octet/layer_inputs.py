"""The process that keeps samples of what every product of a model is fed, for `octet eval`.

    python -m llama_octet.layer_inputs MODEL TEXT OUT.npz TOKENS THREADS

OUT.npz holds, for every weight W that is the first to read its input: `W` f32 (rows, K) and, for
experts, `W@experts` int32 (rows, n), the experts that read each row. `names` and `first`: all
weights, and for each the one whose input it reads.
"""

import argparse
import sys

import numpy as np

from . import runtime
from .collector import Collector
from .commands.calibrate import feed
from .errors import OctetError
from .gguf_tools.evaluate.inputs import read_text
from .gguf_tools.reader import Model


class Rows:
    """What an input was, row by row."""

    def __init__(self):
        """Nothing yet."""
        self.x: list[np.ndarray] = []
        self.experts: list[np.ndarray] = []

    def add(self, x: np.ndarray, experts: np.ndarray | None = None) -> None:
        """Keep rows (rows, K) and the experts (rows, n) that read them."""
        if not np.isfinite(x).all():
            raise ValueError("a value is not finite")
        self.x.append(x.copy())
        if experts is not None:
            self.experts.append(experts.astype(np.int32))


class Recorder(Collector):
    """A collector that keeps the rows themselves."""

    def _sums(self, name: str, experts: int, columns: int) -> Rows:
        return self.sums.setdefault(name, Rows())


def main() -> int:
    """Record and save."""
    model, text, out, tokens, threads = sys.argv[1:]
    try:
        with Model(model) as file:
            shapes = {t.name: t.shape for t in file.tensors.values() if len(t.shape) > 1}
        package = runtime.import_llama_cpp()
        recorder = Recorder(package, shapes, 0, 0, lambda name: False)
        args = argparse.Namespace(
            model=model, tokens=int(tokens), chunk=min(int(tokens), 256), threads=int(threads)
        )
        feed(package, args, read_text(text), recorder)
        arrays = {}
        for name, rows in recorder.sums.items():
            arrays[name] = np.concatenate(rows.x)
            if rows.experts:
                arrays[f"{name}@experts"] = np.concatenate(rows.experts)
        known = list(recorder.input_of.items())
        arrays["names"] = np.array([name for name, _ in known])
        arrays["first"] = np.array([first for _, first in known])
        np.savez(out, **arrays)
    except OctetError as why:
        print(why, file=sys.stderr)
        return why.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

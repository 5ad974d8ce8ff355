"""Watching a model at work: the inputs of its products, through llama.cpp's evaluation callback.

The callback is asked about every node of a graph before it is computed, and shown those that it
asked for right after. At that moment the inputs of the node still lie in memory.
"""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import runtime, tensors
from .errors import OctetError
from .gguf_tools import rotation
from .gguf_tools.errors import shown
from .gguf_tools.imatrix import Statistics
from .gguf_tools.statistics import Sums

_HEADS = ("output.weight", "token_embd.weight")


class Collector:
    """Statistics of every product of one context with a weight of the model.

    `shapes`: of the model's tensors, by name, the input dimension first. `block` (wished) and
    `seed`: of the rotation. `gram(name)`: whether x·xᵀ is wanted too.
    """

    def __init__(
        self,
        package,
        shapes: dict[str, tuple[int, ...]],
        block: int,
        seed: int,
        gram: Callable[[str], bool],
    ):
        """Nothing seen yet. `package` is llama_cpp."""
        self.shapes, self.block, self.seed, self.gram = shapes, block, seed, gram
        self.callback = package.llama_cpp.ggml_backend_sched_eval_callback(self._called)
        self.sums: dict[str, Sums] = {}  # by the first product that reads the input
        self.input_of: dict[str, str] = {}
        self._product = tensors.op_number(package, "MUL_MAT")
        self._product_by_expert = tensors.op_number(package, "MUL_MAT_ID")
        self._name = runtime.shared_library(package).ggml_get_name
        self._name.restype, self._name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        self._checked = False
        self._failure: BaseException | None = None
        self.stopping: list = []  # what, if anything is in it, ends the graph that runs
        self._seen: dict[tuple, str] = {}  # inputs of the graph that runs now
        # The last product of a graph, with the largest weight of many models, is not computed
        # again once its input is known by name: nobody wants its output.
        self._last: tuple[bytes, str] | None = None
        self._stop: tuple[bytes, str] | None = None

    def begin(self) -> None:
        """A new graph is about to run: addresses of the last one mean nothing any more."""
        if self._stop is None and self._last is not None and self._last[1] in _HEADS:
            self._stop = self._last
        self._seen.clear()

    def check(self) -> None:
        """Raise what went wrong in the callback, where nothing can be raised."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def products(self) -> dict[str, Statistics]:
        """What was measured, by the weight's name; readers of one input share it."""
        return {name: self.sums[of].statistics() for name, of in self.input_of.items()}

    def _called(self, address: int, ask: bool, _) -> bool:
        try:
            if self._failure is not None or self.stopping:
                return ask  # the next node is asked for, and ends the graph
            node = tensors.at(address)
            if not self._checked:
                if node.name != self._name(address):
                    raise OctetError("tensors are laid out differently in the installed ggml")
                self._checked = True
            if ask:
                return self._is_wanted(node)
            if self._stop and node.name == self._stop[0]:
                self._add(self._stop[1], tensors.values(node))
                return False  # ends this graph
            self._take(node)
        except Exception as why:  # out of here it would be lost
            self._failure = why
            return False
        return True

    def _is_wanted(self, node: tensors.Tensor) -> bool:
        if self._stop and node.name == self._stop[0]:
            return True
        if node.op not in (self._product, self._product_by_expert):
            return False
        weight, x = tensors.at(node.src[0]), tensors.at(node.src[1])
        return x.type == tensors.F32 and weight.name.decode("utf-8", "replace") in self.shapes

    def _take(self, node: tensors.Tensor) -> None:
        name = tensors.at(node.src[0]).name.decode("utf-8", "replace")
        routed = node.op == self._product_by_expert
        # What reads the same rows of the same experts has the same statistics.
        key = (node.src[1], node.src[2] if routed else None, 0 if routed else self._heads(name))
        first = self._seen.setdefault(key, name)
        if self.input_of.setdefault(name, first) != first:
            raise OctetError(f"{shown(name)} changed its input from one graph to the next")
        if first != name:
            return
        x = tensors.at(node.src[1])
        self._last = (x.name, name) if not x.view_src and x.name else None
        self._add(
            name,
            tensors.values(x),
            tensors.values(tensors.at(node.src[2])) if routed else None,
        )

    def _add(self, name: str, x: np.ndarray, ids: np.ndarray | None = None) -> None:
        try:
            if ids is not None:
                self._add_routed(name, x, ids)
            else:
                self._add_dense(name, x)
        except ValueError as why:
            raise OctetError(
                f"the input of {shown(name)} cannot be measured: {why}: the model is damaged"
            ) from None

    def _add_dense(self, name: str, x: np.ndarray) -> None:
        heads = self._heads(name)
        sums = self._sums(name, heads, x.shape[-1])
        if heads == 1:
            sums.add(x.reshape(-1, x.shape[-1]))
            return
        # One product per head: matrix i of x meets matrix i of the weight. Each token counts once.
        x = x.reshape(-1, *x.shape[-2:])
        for number, part in enumerate(x):
            head = np.full((len(part), 1), number % heads)
            sums.add(part, head)

    def _add_routed(self, name: str, x: np.ndarray, ids: np.ndarray) -> None:
        x, ids = x[0], ids[0, 0]  # (tokens, 1 or used, K), (tokens, used)
        tokens, each, columns = x.shape
        sums = self._sums(name, self.shapes[name][2], columns)
        # Slot s of a token reads its row s modulo their number.
        sums.add(
            np.ascontiguousarray(x).reshape(-1, columns),
            ids if each == 1 else ids.reshape(tokens * each, -1),
        )

    def _heads(self, name: str) -> int:
        return math.prod(self.shapes[name][2:])

    def _sums(self, name: str, experts: int, columns: int) -> Sums:
        if name not in self.sums:
            wanted = self.gram(name)
            if wanted:
                _check_memory(name, 4 * experts * columns * columns)
            block = rotation.block_for(columns, self.block)
            self.sums[name] = Sums(experts, columns, block, self.seed, wanted)
        return self.sums[name]


def _check_memory(name: str, needed: int) -> None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
            if needed > free * 9 // 10:
                raise OctetError(
                    f"--gram of {shown(name)} needs {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB of "
                    "memory are free: name fewer weights"
                )

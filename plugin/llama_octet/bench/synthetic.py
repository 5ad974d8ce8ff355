"""One request: a layer, its weights on both sides, and a row of the table per batch size."""

import contextlib
import os
from collections.abc import Callable

import numpy as np

from .. import header, registration
from ..errors import OctetError
from ..gguf_tools import rotation
from . import ggml, weights
from .layer import Dense, Ffn
from .sides import Ours, Side, Stock
from .timing import Budget, Pairs, interleaved


def run(
    layer: Ffn | Dense,
    tokens: list[int],
    threads: int,
    budget: Budget,
    routings: int,
    say: Callable[[str], None],
) -> dict:
    """Measure; {"isa", "threads", "rows", "max_rel_err", …}."""
    check_memory(layer, max(tokens))
    loaded = registration.load()
    status = registration.status()
    say("making weights")
    sides = both(loaded, layer, threads, loaded.amx["state"] != "broken", weights.make)
    rows, worst = [], 0.0
    for n in tokens:
        say(f"{n} tokens")
        row, error = _row(layer, n, sides, budget, routings)
        rows.append(row)
        worst = max(worst, error)
    say("")
    return {
        "isa": status["isa"],
        "threads": threads,
        "rows": rows,
        "max_rel_err": worst,
        "stock_buffers": sorted(set(sides[1].buffers)),
        "layout": "native" if sides[0].native else "packed",
    }


def both(loaded, layer: Ffn | Dense, threads: int, extra: bool, make) -> tuple:
    """Our side and stock's, each with the layer's weights: blocks that `make` makes.

    `extra`: stock may use its AMX and repacked buffers.
    """
    g = ggml.Ggml(loaded.package)
    with announced(layer, loaded.library):
        native = loaded.library.layout()["layout"] == "native"
        ours, stock = Ours(g, threads, native), Stock(g, threads, extra)
        _fill(layer, stock, ours, loaded.library, make)
    return ours, stock


def check_memory(layer: Ffn | Dense, tokens: int) -> None:
    """OctetError if it cannot fit: the process would be killed without a word."""
    blocks = sum(m.nbytes for m in layer.matrices)
    biggest = max(m.nbytes for m in layer.matrices)
    per_token = 4 * (layer.inputs + 2 * layer.outputs)
    if isinstance(layer, Ffn):
        per_token += 2 * layer.used * 4 * (3 * layer.ff + 2 * layer.embd)
    need = int(2.5 * blocks) + 2 * biggest + tokens * per_token
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as lines:
        line = next(x for x in lines if x.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
    if need > free:
        raise OctetError(
            f"this needs about {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free: take a "
            "smaller --shape, fewer --experts or fewer --tokens"
        )


@contextlib.contextmanager
def announced(layer: Ffn | Dense, library):
    """Tell the backend about a model whose weights are the layer's; it asks while filling."""
    tensors = []
    for m in layer.matrices:
        octet = (rotation.block_for(m.columns, 128), 0) if m.kind.is_int8 else (None, None)
        tensors.append(header.Tensor(m.name, m.kind.ggml.name, m.shape, *octet))
    found = header.Header("llama", False, None, weights.SEED, tuple(tensors))
    library.model_begin("octet bench", found)
    try:
        yield
    finally:
        library.model_end()


def _fill(layer, stock: Side, ours: Side, library, make) -> None:
    rng = np.random.default_rng(1)
    for m in layer.matrices:
        decision = library.decide(m.name, m.kind.ggml.name, m.shape)
        if decision.get("path") != "int8":
            raise OctetError(
                f"octet leaves {m.kind.name} {'x'.join(map(str, m.shape))} to stock: "
                f"{decision.get('reason')}"
            )
        theirs, mine = make(m.kind, m.rows * m.experts, m.columns, rng)
        stock.add(m, theirs)
        ours.add(m, mine)


class Point:
    """One batch size of a layer on both sides, over the same inputs. A context manager."""

    def __init__(self, layer, tokens: int, sides: tuple[Side, Side], routings: int = 1):
        """Make inputs and graphs. `routings`: choices of experts that take turns."""
        self.layer, self.tokens = layer, tokens
        self.g = g = sides[0].g
        rng = np.random.default_rng(tokens)
        self._context = g.context(8)
        x = g.new_tensor_2d(self._context, ggml.F32, layer.inputs, tokens)
        self._ids = self._w = None
        self._routes = []
        if layer.matrices[0].experts > 1:
            self._ids = g.new_tensor_2d(self._context, ggml.I32, layer.used, tokens)
            self._w = g.new_tensor_3d(self._context, ggml.F32, 1, layer.used, tokens)
            experts = layer.matrices[0].experts
            self._routes = [
                weights.routing(tokens, experts, layer.used, rng) for _ in range(routings)
            ]
        self._inputs = g.allocate(self._context, g.cpu_buffer_type)
        g.set(x, weights.activations(tokens, layer.inputs, rng))
        self._graphs = [_Graph(g, layer, side, (x, self._ids, self._w)) for side in sides]
        self._route(0)

    def __enter__(self):
        """Return the point itself."""
        return self

    def __exit__(self, *_):
        """Give the memory of graphs and inputs back."""
        for graph in self._graphs:
            graph.free()
        self.g.backend_buffer_free(self._inputs)
        self.g.free(self._context)

    def warm_up(self) -> float:
        """Compute once on each side. How far the results are apart (`relative_error`)."""
        before = _calls(self.layer)
        self._graphs[0].compute()
        if _calls(self.layer) == before:
            raise OctetError(
                f"octet computed {self.tokens} tokens without its kernel "
                f"'{self.layer.counter()}': the comparison would mean nothing"
            )
        self._graphs[1].compute()
        return relative_error(*(graph.result(self.tokens) for graph in self._graphs))

    def time(self, budget: Budget) -> Pairs:
        """Both sides in turns, after warm_up()."""
        before = _calls(self.layer)
        ours, stock = (graph.compute for graph in self._graphs)
        times = interleaved(ours, stock, budget, self._route if self._routes else None)
        if _calls(self.layer) != before + times.pairs:
            raise OctetError("octet did not compute every repetition in its own kernel")
        return times

    def _route(self, pair: int) -> None:
        if self._routes and (pair == 0 or len(self._routes) > 1):
            of_token, share = self._routes[pair % len(self._routes)]
            self.g.set(self._ids, of_token)
            self.g.set(self._w, share)


def _row(layer, tokens, sides, budget, routings) -> tuple[dict, float]:
    """One row of the table, and how far the two results are from each other."""
    with Point(layer, tokens, sides, routings) as point:
        error = point.warm_up()
        times = point.time(budget)
    row = {
        "tokens": tokens,
        "rows_per_expert": layer.rows_per_expert(tokens),
        "ours_ms": times.ours.median,
        "stock_ms": times.stock.median,
        "ratio": times.stock.median / times.ours.median,
        "ours_min_ms": times.ours.least,
        "stock_min_ms": times.stock.least,
        "pairs": times.pairs,
    }
    return row, error


class _Graph:
    """The layer as a graph of one side, with memory for what lies between."""

    def __init__(self, g: ggml.Ggml, layer, side: Side, inputs: tuple):
        self.g, self.layer, self.side = g, layer, side
        self.context = g.context(layer.nodes())
        self.out, self.graph = layer.build(g, self.context, side.weights, *inputs)
        self.allocator = g.gallocr_new(g.cpu_buffer_type)
        if not g.gallocr_alloc_graph(self.allocator, self.graph):
            raise OctetError("not enough memory for the activations: take fewer --tokens")

    def compute(self) -> None:
        self.side.compute(self.graph)

    def result(self, tokens: int) -> np.ndarray:
        return self.g.get(self.out, (tokens, self.layer.outputs))

    def free(self) -> None:
        self.g.gallocr_free(self.allocator)
        self.g.free(self.context)


def relative_error(ours: np.ndarray, stock: np.ndarray) -> float:
    """The largest |ours - stock| / |stock| of any output row, |.| the Euclidean norm."""
    off = np.linalg.norm(ours.astype(np.float64) - stock, axis=1)
    size = np.linalg.norm(stock.astype(np.float64), axis=1)
    error = float(np.max(off / np.where(size == 0, 1, size)))
    if not np.isfinite(error):
        raise OctetError("one side gave a result that is not a number")
    return error


def _calls(layer) -> int:
    kernels = registration.status()["kernels"]
    return kernels.get(layer.counter(), {"calls": 0})["calls"]

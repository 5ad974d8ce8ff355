"""One request: a layer, its weights on both sides, and a row of the table per batch size."""

import contextlib
import os
import tempfile
from collections.abc import Callable

import numpy as np

from .. import registration
from ..errors import OctetError
from ..gguf_tools import metadata, rotation, writer
from . import ggml, weights
from .layer import Dense, Ffn
from .sides import Ours, Side, Stock
from .timing import Budget, interleaved


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
    native = status["settings"].get("OCTET_LAYOUT") == "native"
    g = ggml.Ggml(loaded.package)
    stock = Stock(g, threads, use_extra=loaded.amx["state"] != "broken")
    ours = Ours(g, threads, native)
    say("making weights")
    with announced(layer, loaded.library):
        _fill(layer, stock, ours, loaded.library)
    rows, worst = [], 0.0
    for n in tokens:
        say(f"{n} tokens")
        row, error = _point(layer, n, stock, ours, budget, routings)
        rows.append(row)
        worst = max(worst, error)
    say("")
    return {
        "isa": status["isa"],
        "threads": threads,
        "rows": rows,
        "max_rel_err": worst,
        "stock_buffers": sorted(set(stock.buffers)),
        "layout": "native" if native else "packed",
    }


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
    """Tell the backend about a model whose int8 tensors are the layer's; it asks while filling."""
    listed = {
        m.name: (rotation.block_for(m.columns, 128), 0) for m in layer.matrices if m.kind.is_int8
    }
    if not listed:
        yield
        return
    entries = [
        writer.string("general.architecture", metadata.GUARD),
        writer.u32("octet.version", metadata.VERSION),
        writer.string("octet.base_architecture", "llama"),
        writer.strings("octet.tensors", list(listed)),
        writer.i32s("octet.tensors.rotation", [block for block, _ in listed.values()]),
        writer.i32s("octet.tensors.scale_group", [group for _, group in listed.values()]),
        writer.string("octet.rotation.axis", rotation.AXIS),
        writer.string("octet.rotation.hash", rotation.HASH),
        writer.u32("octet.rotation.seed", weights.SEED),
    ]
    with tempfile.NamedTemporaryFile(prefix="octet-bench-", suffix=".gguf") as file:
        file.write(writer.header(entries, []))
        file.flush()
        library.model_begin(file.name)
        try:
            yield
        finally:
            library.model_end()


def _fill(layer, stock: Side, ours: Side, library) -> None:
    rng = np.random.default_rng(1)
    for m in layer.matrices:
        decision = library.decide(m.name, m.kind.ggml.name, m.shape)
        if decision.get("path") != "int8":
            raise OctetError(
                f"octet leaves {m.kind.name} {'x'.join(map(str, m.shape))} to stock: "
                f"{decision.get('reason')}"
            )
        theirs, mine = weights.make(m.kind, m.rows * m.experts, m.columns, rng)
        stock.add(m, theirs)
        ours.add(m, mine)


def _point(layer, tokens, stock: Side, ours: Side, budget, routings) -> tuple[dict, float]:
    """One row of the table, and how far the two results are from each other."""
    g = stock.g
    rng = np.random.default_rng(tokens)
    context = g.context(8)
    x = g.new_tensor_2d(context, ggml.F32, layer.inputs, tokens)
    ids = w = None
    routes = []
    if isinstance(layer, Ffn):
        ids = g.new_tensor_2d(context, ggml.I32, layer.used, tokens)
        w = g.new_tensor_3d(context, ggml.F32, 1, layer.used, tokens)
        routes = [weights.routing(tokens, layer.experts, layer.used, rng) for _ in range(routings)]
    inputs = g.allocate(context, g.cpu_buffer_type)
    g.set(x, weights.activations(tokens, layer.inputs, rng))
    graphs = [_Graph(g, layer, side, (x, ids, w)) for side in (ours, stock)]

    def route(pair: int) -> None:
        if pair == 0 or len(routes) > 1:
            of_token, share = routes[pair % len(routes)]
            g.set(ids, of_token)
            g.set(w, share)

    try:
        if routes:
            route(0)
        before = _calls(layer)
        graphs[0].compute()
        if _calls(layer) == before:
            raise OctetError(
                f"octet computed {tokens} tokens without its kernel '{layer.counter()}': "
                "the comparison would mean nothing"
            )
        graphs[1].compute()
        error = relative_error(*(graph.result(tokens) for graph in graphs))
        times = interleaved(graphs[0].compute, graphs[1].compute, budget, route if routes else None)
        if _calls(layer) != before + 1 + times.pairs:
            raise OctetError("octet did not compute every repetition in its own kernel")
    finally:
        for graph in graphs:
            graph.free()
        g.backend_buffer_free(inputs)
        g.free(context)
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

"""The graphs, node by node in the order in which llama.cpp builds them."""

from dataclasses import dataclass

from . import ggml
from .weights import Kind

GLUS = ("swiglu", "geglu", "reglu")


@dataclass(frozen=True)
class Matrix:
    """One weight of a layer."""

    name: str
    kind: Kind
    columns: int
    rows: int
    experts: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, ggml's order."""
        return (self.columns, self.rows, self.experts)[: 3 if self.experts > 1 else 2]

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return self.kind.ggml.row_bytes(self.columns) * self.rows * self.experts

    def new_tensor(self, g: ggml.Ggml, context: int) -> int:
        """A tensor of this type, shape and name."""
        new = g.new_tensor_3d if self.experts > 1 else g.new_tensor_2d
        tensor = new(context, self.kind.ggml.id, *self.shape)
        g.set_name(tensor, self.name.encode())
        return tensor


@dataclass(frozen=True)
class Ffn:
    """One mixture-of-experts layer: gate, up, GLU, down, weighted sum."""

    embd: int
    ff: int
    experts: int
    used: int
    gate_up: Kind
    down: Kind
    glu: str = "swiglu"
    merged: bool = False

    @property
    def matrices(self) -> list[Matrix]:
        """The weights: gate, up, down; or gate and up in one, down."""
        halves = ("gate_up",) if self.merged else ("gate", "up")
        rows = self.ff * (2 if self.merged else 1)
        first = [
            Matrix(f"blk.0.ffn_{half}_exps.weight", self.gate_up, self.embd, rows, self.experts)
            for half in halves
        ]
        name = "blk.0.ffn_down_exps.weight"
        return [*first, Matrix(name, self.down, self.ff, self.embd, self.experts)]

    @property
    def inputs(self) -> int:
        """Length of a row that goes in."""
        return self.embd

    @property
    def outputs(self) -> int:
        """Length of a row that comes out."""
        return self.embd

    def rows_per_expert(self, tokens: int) -> float:
        """Rows that an expert sees, on average."""
        return tokens * self.used / self.experts

    def counter(self) -> str:
        """What status() counts when this runs in one piece."""
        return f"chain {self.gate_up.name}:{self.down.name}"

    def nodes(self) -> int:
        """Tensors of a graph, at most."""
        return 16 + 2 * self.used

    def build(self, g: ggml.Ggml, context: int, weights: list[int], x: int, ids: int, w: int):
        """The output, and everything that leads to it in a graph: (output, graph)."""
        graph = g.new_graph(context)
        tokens = self._tokens(g, x)
        cur = g.reshape_3d(context, x, self.embd, 1, tokens)
        if self.merged:
            both = g.mul_mat_id(context, weights[0], cur, ids)
            _, nb1, nb2, _ = g.strides(both)
            shape = (self.ff, self.used, tokens, nb1, nb2)
            gate = g.view_3d(context, both, *shape, 0)
            up = g.view_3d(context, both, *shape, self.ff * 4)
        else:
            up = g.mul_mat_id(context, weights[1], cur, ids)
            gate = g.mul_mat_id(context, weights[0], cur, ids)
        glu = getattr(g, f"{self.glu}_split")(context, gate, up)
        outs = g.mul(context, g.mul_mat_id(context, weights[-1], glu, ids), w)
        g.build_forward_expand(graph, outs)
        _, nb1, nb2, _ = g.strides(outs)
        slots = []
        for i in range(self.used):
            slots.append(g.view_2d(context, outs, self.embd, tokens, nb2, i * nb1))
            g.build_forward_expand(graph, slots[-1])
        total = slots[0]
        for slot in slots[1:]:
            total = g.add(context, total, slot)
            g.build_forward_expand(graph, total)
        return total, graph

    @staticmethod
    def _tokens(g: ggml.Ggml, x: int) -> int:
        return g.nbytes(x) // g.strides(x)[1]


@dataclass(frozen=True)
class Dense:
    """One matrix product; with several experts, one of each token's rows by each of its experts."""

    rows: int
    columns: int
    kind: Kind
    experts: int = 1
    used: int = 1

    @property
    def matrices(self) -> list[Matrix]:
        """The weight."""
        name = "blk.0.ffn_down_exps.weight" if self.experts > 1 else "blk.0.ffn_down.weight"
        return [Matrix(name, self.kind, self.columns, self.rows, self.experts)]

    @property
    def inputs(self) -> int:
        """Length of a row that goes in."""
        return self.columns

    @property
    def outputs(self) -> int:
        """Length of a row that comes out."""
        return self.rows * self.used

    def rows_per_expert(self, tokens: int) -> float:
        """Rows that an expert sees, on average; all if there is one matrix."""
        return tokens * self.used / self.experts

    def counter(self) -> str:
        """What status() counts when this runs."""
        return f"{'experts' if self.experts > 1 else 'dense'} {self.kind.name}"

    def nodes(self) -> int:
        """Tensors of a graph, at most."""
        return 8

    def build(self, g: ggml.Ggml, context: int, weights: list[int], x: int, ids: int, w: int):
        """The output and its graph."""
        graph = g.new_graph(context)
        if self.experts > 1:
            tokens = g.nbytes(x) // g.strides(x)[1]
            x = g.reshape_3d(context, x, self.columns, 1, tokens)
            out = g.mul_mat_id(context, weights[0], x, ids)
        else:
            out = g.mul_mat(context, weights[0], x)
        g.build_forward_expand(graph, out)
        return out, graph

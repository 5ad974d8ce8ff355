"""What the machine code costs on the cards: instructions and bytes against published rates.

A step is 16 output rows times 32 columns times MT tiles of one thread. The cycles of each unit are
counted from the inner loop of the assembly; the largest, over the units that there are, is the
bound. Left out are latencies that four threads an engine do not hide, launches, and the ends of a
range.
"""

import re
from dataclasses import dataclass

from .assembly import Report
from .build import build
from .table import read
from .variants import FORMATS, dequantize, product, product_half, rows

ENGINES = 8  # vector engines, and matrix engines, of an Xe core
# An int8 dpas 8x16x32 is 4096 multiply-adds. The published int8 rates are 256 of them per cycle and
# matrix engine at the clocks below (2 operations each); fp16, 8x16x16, half of that.
DPAS_CYCLES = 16
# Not published for these cards, so assumed: a block message moves 128 bytes a cycle and core; a
# gather from local memory finds its 16 words in random banks out of 32, 3 of them in the fullest;
# one from global memory touches 16 lines, one a cycle.
BLOCK_BYTES = 128
LOCAL_GATHER = 3
GLOBAL_GATHER = 16

BYTES = {  # of a weight
    **{"iq3_s": 110 / 256, "iq3_xxs": 98 / 256, "iq2_s": 82 / 256, "iq4_nl": 18 / 32},
    **{"q2_0": 18 / 64, "q8_0": 34 / 32, "q8_0_128": 34 / 32, "q8_0_row": 34 / 32},
}
ROWS = (8, 16, 32, 64, 128, 256)
K, N_FF = 2560, 640  # the experts whose dequantize + GEMM chain was reported


@dataclass(frozen=True)
class Card:
    """Published rates."""

    name: str
    device: str
    cores: int
    tops: float  # int8, 1/s
    memory: float  # bytes/s

    @property
    def clock(self) -> float:
        """Hz, at which the published int8 rate holds."""
        return self.tops / (self.cores * ENGINES * 2 * 4096 / DPAS_CYCLES)

    def seconds(self, core_cycles: float) -> float:
        """Of work that takes so many cycles of one core, on all of them."""
        return core_cycles / (self.cores * self.clock)


CARDS = (
    Card("Arc B580", "bmg-g21", 20, 233e12, 456e9),
    Card("Arc Pro B70", "bmg-g31", 32, 367e12, 608e9),
)


def _memory_cycles(messages: dict) -> float:
    """Cycles of a core's load/store unit for one step of one thread."""
    total = 0.0
    for (message, lanes), count in messages.items():
        block = re.match(r"(?:load|store)\.(?:slm|ugm)\.d(\d+)x(\d+)t", message)
        if block:
            total += count * max(1, int(block[1]) * int(block[2]) / 8 / BLOCK_BYTES)
        elif message.startswith("load.slm"):
            words = re.search(r"d32x(\d)", message)
            total += count * LOCAL_GATHER * (int(words[1]) if words else 1) * lanes / 16
        elif message.startswith("load.ugm"):
            total += count * GLOBAL_GATHER * lanes / 16
    return total


@dataclass
class Step:
    """Cycles of a step of one thread on each unit."""

    vector: float  # of its engine, one instruction at a time
    float_pipe: float
    int_pipe: float
    matrix: float  # of its matrix engine
    memory: float  # of its core's load/store unit

    @staticmethod
    def of(report: Report) -> "Step":
        """From the inner loop of a kernel."""
        loop = report.loop
        return Step(
            vector=loop.cycles,
            float_pipe=loop.kinds["float"],
            int_pipe=loop.kinds["int"] + loop.kinds["control"],
            matrix=loop.dpas * DPAS_CYCLES,
            memory=_memory_cycles(loop.messages),
        )

    def core_cycles(self) -> float:
        """Cycles of a core, whose eight engines work side by side."""
        return max(self.vector / ENGINES, self.matrix / ENGINES, self.memory)

    def bound(self) -> str:
        """The unit that takes longest."""
        units = {"vector": self.vector, "matrix": self.matrix, "load/store": self.memory * ENGINES}
        return max(units, key=units.get)


def step(format: str, mt: int, wg: int, card: Card) -> Step:
    """A step of octet_product."""
    return Step.of(read(build(product(format, mt, wg)), card.device))


def _rows_cycles(glu: str, format: str, card: Card) -> int:
    """Of octet_rows for 128 columns: every instruction once, but rotation only for int8 weights."""
    r = read(build(rows(glu, 128, 0)), card.device)
    return r.cycles if format.startswith("q8_0") else r.cycles - r.rotation_cycles


def expert(card: Card, gate: str, down: str, count: int, mt: int, wg: int) -> dict[str, float]:
    """Seconds that one expert with `count` rows takes of a card that is full, by launch."""
    tiles = -(-count // 8)
    jobs = -(-tiles // mt)
    first = _rows_cycles("none", gate, card) * K / 128
    second = _rows_cycles("swiglu", down, card) * N_FF / 128
    gate_steps = 2 * (N_FF // 16) * (K // 32) * jobs
    down_steps = (K // 16) * (N_FF // 32) * jobs
    out = {
        "rows": card.seconds(8 * tiles * (first + second) / ENGINES),
        "gate_up": card.seconds(gate_steps * step(gate, mt, wg, card).core_cycles()),
        "down": card.seconds(down_steps * step(down, mt, wg, card).core_cycles()),
    }
    weights = (2 * N_FF * K * BYTES[gate] + K * N_FF * BYTES[down]) / card.memory
    return {**out, "weights": weights, "all": max(sum(out.values()), weights)}


def float_chain(card: Card, gate: str, down: str, count: int) -> dict[str, float]:
    """The same of the float chain, weights dequantized to fp16 through memory."""
    tiles = -(-count // 8)
    mt = 2 if tiles <= 2 else 4 if tiles <= 4 else 8
    half = Step.of(read(build(product_half(mt)), card.device)).core_cycles()
    steps = 3 * (N_FF // 16) * (K // 16) * -(-tiles // mt)
    panels = (2 * N_FF // 16 * K // 32, K // 16 * N_FF // 32)
    cycles = sum(
        # Straight-line code of one step; a loop's ends are small beside it.
        read(build(dequantize(f)), card.device).cycles * p
        for f, p in zip((gate, down), panels, strict=True)
    )
    bytes_moved = 3 * N_FF * K * 2 * 2  # fp16, written and read
    return {
        "dequantize": max(card.seconds(cycles / ENGINES), bytes_moved / card.memory),
        "products": card.seconds(steps * half),
    }


def _best(card: Card, gate: str, down: str, count: int) -> tuple[dict[str, float], int, int]:
    choices = [
        (expert(card, gate, down, count, mt, wg), mt, wg) for mt in (2, 4, 8) for wg in (0, 1)
    ]
    return min(choices, key=lambda c: c[0]["all"])


def _row(*cells) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _table(*head: str) -> list[str]:
    return [_row(*head), "|" + "---|" * len(head)]


def prediction() -> dict:
    """Microseconds of an expert, as `octet doctor --gpu-report` shows them beside what it measures.

    {"shape": [k, n_ff], "us_per_expert": {device: {pair: [[rows, int8, half], ...]}}}
    """
    pairs = [(g, d) for g in ("iq3_s", "iq3_xxs", "iq2_s") for d in ("iq4_nl", "q2_0")]
    pairs.append(("q8_0_row", "q8_0_row"))
    names = {pair: ":".join("int8" if f == "q8_0_row" else f for f in pair) for pair in pairs}
    cards = {}
    for card in CARDS:
        cards[card.device] = {}
        for gate, down in pairs:
            rows = []
            for count in (16, 32, 64, 128, 256):
                half = sum(float_chain(card, *_files(gate, down), count).values())
                int8 = _best(card, gate, down, count)[0]["all"]
                rows.append([count, round(1e6 * int8, 1), round(1e6 * half, 1)])
            cards[card.device][names[gate, down]] = rows
    return {"shape": [K, N_FF], "us_per_expert": cards}


def _files(*formats: str) -> list[str]:
    """The formats of octet_dequantize."""
    return [f.removesuffix("_row") for f in formats]


def markdown() -> str:
    """The tables of docs/battlemage.md."""
    card = CARDS[1]
    out = _table(
        "format", "MT", "variant", "vector", "float", "int", "matrix", "load/store", "bound by"
    )
    for format in FORMATS:
        for mt, wg in ((8, 1), (8, 0), (2, 1), (2, 0)):
            s = step(format, mt, wg, card)
            units = (s.vector, s.float_pipe, s.int_pipe, s.matrix, s.memory * ENGINES)
            variant = "work-group" if wg else "plain"
            out.append(_row(format, mt, variant, *(f"{u:.0f}" for u in units), s.bound()))
    for card in CARDS:
        clock = f"{card.clock / 1e9:.2f} GHz"
        out += ["", f"**{card.name}** ({card.device}), {card.cores} cores, {clock}:", ""]
        out += _table(
            *("gate, up → down", "rows", "best", "rows, µs", "gate/up, µs", "down, µs"),
            *("weights, µs", "all, µs", "float chain: dequantize, µs", "products, µs"),
        )
        for gate, down in (("iq3_s", "iq4_nl"), ("iq2_s", "q2_0"), ("q8_0_row", "q8_0_row")):
            for count in ROWS:
                t, mt, wg = _best(card, gate, down, count)
                f = float_chain(card, *_files(gate, down), count)
                best = f"MT {mt}, {'work-group' if wg else 'plain'}"
                times = [f"{1e6 * x:.1f}" for x in (*t.values(), *f.values())]
                out.append(_row(f"{gate} → {down}", count, best, *times))
    return "\n".join(out)

"""Times kinds of layers on both sides, in a process of its own (crossover.py starts it).

Prints a line of JSON per layer: {"label", "samples": [[rows, ours_ms, stock_ms], …]}, or
{"label", "error"}.
"""

import json
import sys
import time

from . import registration
from .bench import layer, synthetic, weights
from .bench.timing import Budget
from .crossover import LEAST_SAMPLES
from .errors import OctetError, one_line

ROWS = (1, 8, 16, 32, 64, 128, 256)  # mean rows per expert
# Weights of a layer at most: 256 rows of so many take stock about a tenth of a second. What counts
# is rows per expert, so there are few experts, and a larger layer is made smaller.
LARGEST = 1 << 25
EXPERTS = (8, 4)  # the first that fits
USED = 2
LEAST_PAIRS = 3
POINT = (
    0.2  # seconds that pairs of one number of rows take at most, if they are more than LEAST_PAIRS
)
# Activations are int8 on both sides, rounded in different ways. Further apart they did not compute
# the same.
TOLERANCE = 0.2


def layer_of(label: str) -> layer.Ffn | layer.Dense:
    """What to time for a label of the backend (plugin/backend/auto.h), no larger than LARGEST."""
    what, types, shape = label.split()
    kinds = [weights.kind_of(name, label) for name in types.split(":")]
    a, b = map(int, shape.split("x"))
    if what == "chain":
        a, b = smaller(a, b, LARGEST // 3 // EXPERTS[-1], kinds[0].ggml.block, kinds[1].ggml.block)
        return layer.Ffn(a, b, experts(3 * a * b), USED, *kinds)
    if what == "experts":
        a, b = smaller(a, b, LARGEST // EXPERTS[-1], 16, kinds[0].ggml.block)
        return layer.Dense(a, b, kinds[0], experts(a * b), USED)
    a, b = smaller(a, b, LARGEST, 16, kinds[0].ggml.block)
    return layer.Dense(a, b, kinds[0])


def smaller(a: int, b: int, most: int, step_a: int, step_b: int) -> tuple[int, int]:
    """a, b, the larger of the two halved until there are no more than `most` products of them.

    Each stays a multiple of its step, and what cannot be halved stays.
    """
    while a * b > most:
        of_a, of_b = a % (2 * step_a) == 0, b % (2 * step_b) == 0
        if of_a and (a >= b or not of_b):
            a //= 2
        elif of_b:
            b //= 2
        else:
            break
    return a, b


def experts(weights_each: int) -> int:
    """How many experts to time."""
    return next((n for n in EXPERTS if n * weights_each <= LARGEST), EXPERTS[-1])


def curve(loaded, label: str, threads: int, native: bool, deadline: float) -> list:
    """[rows, ours_ms, stock_ms] from one row per expert upwards, as far as the time allows.

    No time at all gives nothing.
    """
    what = layer_of(label)
    synthetic.check_memory(what, int(ROWS[-1] / what.rows_per_expert(1)))

    def make(*shape):
        blocks = weights.random_blocks(*shape)
        return blocks, blocks

    # Blocks in place cannot be compared with AMX or repacked buffers, which are copies.
    extra = loaded.amx["state"] != "broken" and not native
    sides = synthetic.both(loaded, what, threads, extra, make)
    samples, last = [], None
    for i, rows in enumerate(ROWS):
        tokens = max(1, round(rows / what.rows_per_expert(1)))
        begin = time.monotonic()
        # A pair takes at most as many times longer as there are more rows; one is not timed. The
        # first few numbers of rows are soon done on any machine that is not busy with other things.
        soon = 2 * last[1] * rows / last[0] if len(samples) >= LEAST_SAMPLES else 0
        if begin + soon > deadline:
            break
        with synthetic.Point(what, tokens, sides) as point:
            error = point.warm_up()
            if not error < TOLERANCE:
                raise OctetError(f"ours and stock differ by {error:.2g}")
            now = time.monotonic()
            share = min(POINT, (deadline - now) / (len(ROWS) - i))
            times = point.time(Budget(share, least=LEAST_PAIRS if share > now - begin else 1))
        # The fastest of few: whatever else the machine does only ever adds to it.
        ours, stock = times.ours.least, times.stock.least
        samples.append([what.rows_per_expert(tokens), ours, stock])
        last = rows, (ours + stock) / 1000
    return samples


def main(request: str) -> int:
    """Answer a request of crossover.py."""
    request = json.loads(request)
    labels, deadline = request["labels"], request["deadline"]
    try:
        loaded = registration.load()
        native = registration.status()["settings"]["OCTET_LAYOUT"] == "native"
    except OctetError as why:
        print(one_line(why), file=sys.stderr)
        return 1
    for i, label in enumerate(labels):
        now = time.monotonic()
        try:
            share = now + max(0, deadline - now) / (len(labels) - i)
            result = {"samples": curve(loaded, label, request["threads"], native, share)}
        except OctetError as why:
            result = {"error": one_line(why)}
        print(json.dumps({"label": label, **result}), flush=True)
    return 0

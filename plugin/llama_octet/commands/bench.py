"""`octet bench`: our kernels against stock ggml."""

import argparse
import math
import os
import re
import sys
import time

from .. import switches
from ..errors import UsageError

HELP = "Time one expert layer, one matrix product or a whole model: ours and stock, in turns."
EXAMPLE = "octet bench --shape 2560x640 --experts 64 --used 8 --gate-up iq3_s --down iq4_nl"
GLUS = ("swiglu", "geglu", "reglu")

DETAILS = """\
Without MODEL: synthetic weights, the same for both sides, each where its side keeps weights; the
two compute in turns in one process, and the table shows medians in milliseconds. max_rel_err is
the largest |ours - stock| / |stock| of any output row (Euclidean norms over the row): both sides
round activations, in different ways, so it is about 0.01. int8 is rotated int8 with one scale per
row; stock computes the same floats in q8_0.

With MODEL: tokens per second of a prompt and of generation, ours and stock in processes of their
own that take turns. Stock reads a rotated file as the Q8_0 it looks like: right in speed, not in
content.

"""

# Defaults of what only a synthetic layer has; None on the command line until asked for.
SYNTHETIC = {
    "shape": (2560, 640),
    "experts": 64,
    "used": 8,
    "gate_up": "iq3_s",
    "down": "iq4_nl",
    "tokens": [1, 8, 64, 512],
    "glu": "swiglu",
    "merged": False,
    "routings": 1,
}
SECONDS = 1.5
ROUNDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = DETAILS + parser.epilog
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="a GGUF file: time it end to end")
    add("--shape", metavar="EMBDxFF", type=_pair, help="of the experts (2560x640)")
    add("--experts", metavar="N", type=_whole(2, 65536), help="experts (64)")
    add("--used", metavar="N", type=_whole(2, 1024), help="experts of a token (8)")
    add("--gate-up", metavar="TYPE", help="type of gate and up, or int8 (iq3_s)")
    add("--down", metavar="TYPE", help="type of down, or int8 (iq4_nl)")
    add("--glu", choices=GLUS, help="between them (swiglu)")
    add("--merged", action="store_true", default=None, help="gate and up in one tensor")
    add(
        "--routings",
        metavar="N",
        type=_whole(1, 4096),
        help=(
            "choices of experts to take turns, one per pair (1: always the same experts, whose "
            "weights the last-level cache may keep)"
        ),
    )
    add("--dense", metavar="ROWSxK", type=_pair, help="one matrix product instead of a layer")
    add("--type", metavar="TYPE", help="its type, or int8 (int8)")
    add("--tokens", metavar="N,N", type=_list, help="batch sizes (1,8,64,512)")
    add(
        "--threads",
        metavar="N",
        type=_whole(1, 1024),
        default=len(os.sched_getaffinity(0)),
        help="CPU threads (all: %(default)s)",
    )
    add("--isa", metavar="NAME", choices=_isas(), help=", ".join(_isas()))
    add(
        "--repeat",
        metavar="N",
        type=_whole(1, 1_000_000),
        help="pairs per batch size, or rounds with MODEL (3)",
    )
    add(
        "--seconds",
        metavar="S",
        type=_seconds,
        help=f"time per batch size ({SECONDS}), at least 5 pairs",
    )
    add(
        "--cpu-time",
        action="store_true",
        default=None,
        help="with --threads 1, for busy machines: the thread's own time, not the clock's",
    )
    add("--against", metavar="FILE", help="with MODEL: what stock runs (the same file)")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    _check(args)
    if args.isa:
        os.environ["OCTET_ISA"] = args.isa
    if args.model is not None:
        from ..bench import model

        return model.run(
            args.model, args.against or args.model, args.threads, args.repeat or ROUNDS, _say
        )
    for name, value in SYNTHETIC.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    # All of it here, whatever `auto` would leave to stock; what the user has set stays.
    for name in ("OCTET_W8A8", "OCTET_MOE", "OCTET_DENSE"):
        os.environ[name] = os.environ.get(name) or "1"
    layer, facts = _layer(args)

    from ..bench import synthetic
    from ..bench.timing import Budget

    clock = time.thread_time_ns if args.cpu_time else time.perf_counter_ns
    budget = Budget(args.seconds or SECONDS, args.repeat, clock)
    found = synthetic.run(layer, args.tokens, args.threads, budget, args.routings, _say)
    return {"isa": found.pop("isa"), "threads": found.pop("threads"), **facts, **found}


def render(result: dict) -> str:
    """The table."""
    from ..bench import report

    return report.of_model(result) if "model" in result else report.of_layer(result)


def _layer(args):
    """The layer asked for, and what the result says about it."""
    from ..bench import layer, weights

    if args.dense:
        kind = weights.kind_of(args.type or weights.INT8, "--type")
        rows, columns = args.dense
        weights.check_columns(kind, columns, "--dense")
        facts = {"dense": f"{rows}x{columns}", "type": kind.name}
        return layer.Dense(rows, columns, kind), facts
    if args.used > args.experts:
        raise UsageError(f"--used {args.used}: there are {args.experts} experts")
    gate_up = weights.kind_of(args.gate_up, "--gate-up")
    down = weights.kind_of(args.down, "--down")
    embd, ff = args.shape
    weights.check_columns(gate_up, embd, "--gate-up")
    weights.check_columns(down, ff, "--down")
    facts = {
        "gate_up": gate_up.name,
        "down": down.name,
        "shape": f"{embd}x{ff}",
        "experts": args.experts,
        "used": args.used,
        "glu": args.glu,
        "merged": args.merged,
    }
    one = layer.Ffn(embd, ff, args.experts, args.used, gate_up, down, args.glu, args.merged)
    return one, facts


def _check(args) -> None:
    """UsageError for options that do not go together."""
    of_experts = [n for n in SYNTHETIC if n != "tokens" and getattr(args, n) is not None]
    if args.model is not None:
        wrong = [
            n
            for n in (*SYNTHETIC, "dense", "type", "seconds", "cpu_time")
            if getattr(args, n) is not None
        ]
        if wrong:
            raise UsageError(f"{_option(wrong[0])} does not go with MODEL")
    elif args.against is not None:
        raise UsageError("--against goes with MODEL")
    elif args.dense and of_experts:
        raise UsageError(f"{_option(of_experts[0])} does not go with --dense")
    elif args.type is not None and not args.dense:
        raise UsageError("--type goes with --dense; experts have --gate-up and --down")
    if args.cpu_time and args.threads != 1:
        raise UsageError("--cpu-time is the time of one thread: give --threads 1")
    if args.repeat is not None and args.seconds is not None:
        raise UsageError("give either --repeat or --seconds")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _isas() -> tuple[str, ...]:
    return switches.BACKEND["OCTET_ISA"]


_progress = 0


def _say(text: str) -> None:
    """Progress, on a terminal only; an empty text ends it."""
    global _progress
    if not sys.stderr.isatty():
        return
    line = f"octet bench: {text}" if text else ""
    print(
        "\r" + line.ljust(_progress) + ("" if line else "\r"), end="", file=sys.stderr, flush=True
    )
    _progress = len(line)


def _whole(least: int, most: int):
    def convert(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return int(text)

    return convert


def _pair(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole numbers like 2560x640")
    return int(match[1]), int(match[2])


def _list(text: str) -> list[int]:
    convert = _whole(1, 1 << 16)
    return [convert(part) for part in text.split(",")]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value

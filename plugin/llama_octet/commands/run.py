"""`octet run`: continue a text, and say how fast and by which kernels."""

import argparse
import codecs
import ctypes
import math
import os
import sys
import time
from pathlib import Path

from .. import amx, header, runtime
from ..errors import ModelError, UsageError

HELP = "Generate text with a model; shows the speed and which kernels ran."
USUAL_CONTEXT = 2048
EXAMPLE = 'octet run model.gguf -p "Paris is the capital of" -n 16'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, converted or not")
    parser.add_argument("-p", "--prompt", metavar="TEXT", required=True, help="the text to go on")
    parser.add_argument(
        "-n", metavar="N", type=_whole("-n", 1), default=128, help="tokens at most (%(default)s)"
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=_whole("--threads", 1),
        default=len(os.sched_getaffinity(0)),
        help="CPU threads (all: %(default)s)",
    )
    parser.add_argument(
        "--ctx",
        metavar="N",
        type=_whole("--ctx", 1),
        help="room for prompt and answer, in tokens (as much as they can need, up to "
        f"{USUAL_CONTEXT} or the model's own)",
    )
    parser.add_argument(
        "--temp",
        metavar="T",
        type=_temperature,
        default=0.0,
        help="0 always takes the likeliest token (%(default)s)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=_whole("--seed", 0), default=0, help="for --temp above 0"
    )
    parser.add_argument("--stock", action="store_true", help="without the plugin, for comparison")
    # Pages of a mapped file are read at their first use; a comparison of speeds wants that over.
    parser.add_argument("--warm-up", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> dict:
    """Generate. Streams the text to stdout unless JSON is wanted."""
    if not args.prompt:
        raise UsageError("the prompt is empty: give -p some text")
    start = time.perf_counter()
    llm, status = _load(args)
    load_s = time.perf_counter() - start

    tokens = llm.tokenize(
        args.prompt.encode("utf-8", "surrogateescape"), add_bos=True, special=True
    )
    if not tokens:
        raise UsageError("the prompt has no tokens for this model: give -p some text")
    # llama.cpp rounds its context up; what was asked for is what there is room for.
    context = min(llm.n_ctx(), args.ctx or llm.n_ctx())
    if len(tokens) >= context:
        raise UsageError(
            f"the prompt has {len(tokens)} tokens, more than fit into a context of "
            f"{context}: shorten it or raise --ctx"
        )
    if args.warm_up:
        llm.eval(tokens[:2])
        llm.reset()
    llm.set_seed(args.seed)
    limit = min(args.n, context - len(tokens))
    out, text, times = _generate(llm, tokens, limit, args)
    if limit < args.n and len(out) == limit:
        print(f"octet: the context of {context} tokens is full (--ctx)", file=sys.stderr)

    first, last = times[1] - times[0], times[-1] - times[1]
    result = {
        "model": args.model,
        "prompt": args.prompt,
        "text": text,
        "tokens": out,
        "prompt_tokens": len(tokens),
        "prompt_tps": len(tokens) / first if first > 0 else None,
        # The first token comes with the prompt; speed is that of the others.
        "gen_tps": (len(times) - 2) / last if last > 0 else None,
        "load_s": load_s,
        "threads": args.threads,
        "peak_rss_mib": peak_rss_mib(),
        "status": status(),
    }
    llm.close()
    return result


def render(result: dict) -> str:
    """The text is out already; the figures go to stderr. Nothing is left for stdout."""
    print(file=sys.stdout, flush=True)
    print("octet: " + speed_line(result), file=sys.stderr)
    print("octet: " + kernel_line(result["status"]), file=sys.stderr)
    return ""


def speed_line(result: dict) -> str:
    """Speeds, load time and memory in one line."""

    def rate(tps):
        return f"{tps:.1f} tokens/s" if tps else "too short to time"

    return (
        f"prompt {result['prompt_tokens']} tokens, {rate(result['prompt_tps'])}; "
        f"generated {len(result['tokens'])}, {rate(result['gen_tps'])}; "
        f"loaded in {result['load_s']:.2f} s; peak memory {result['peak_rss_mib']:.0f} MiB"
    )


def kernel_line(status: dict) -> str:
    """Which of our kernels ran, in one line."""
    if not status.get("loaded"):
        return "stock llama.cpp, no plugin"
    ran = [
        f"{name} {of['calls']} calls, {of['rows']} rows"
        for name, of in status.get("kernels", {}).items()
        if of.get("calls")
    ]
    isa = status.get("isa", "?")
    if not ran:
        return f"none of our kernels ran ({isa}): the model has no tensors for them"
    return f"kernels ({isa}): " + "; ".join(ran)


def peak_rss_mib() -> float:
    """The most memory this program has had resident. (ru_maxrss would count its parent's too.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return math.nan


def _needed(args) -> int:
    """Tokens that prompt and answer can need: at most one a byte, and a few for the start."""
    return len(args.prompt.encode("utf-8", "surrogateescape")) + 16 + args.n


def _load(args):
    found = header.read(args.model)
    common = {
        "n_ctx": args.ctx
        or min(_needed(args), USUAL_CONTEXT, found.context_length or USUAL_CONTEXT),
        "n_threads": args.threads,
        "n_threads_batch": args.threads,
        "swa_full": False,  # the whole context is only worth keeping for a prompt that is changed
        "verbose": False,
    }
    return open_model(args.model, args.stock, found, **common)


def open_model(path: str, stock: bool, found: header.Header | None = None, **arguments):
    """A model in the plugin, or without it in stock, and a function that gives the status.

    `found`: its header, if it has been read.
    """
    if not stock:
        from .. import Llama, status

        return Llama(path, checked=found, **arguments), status
    package = runtime.import_llama_cpp()
    if (found or header.read(path)).guarded:
        raise ModelError(
            f"{path}: rotated int8, stock llama.cpp would answer gibberish: run it in the plugin"
        )
    # Without this, stock cannot read a prompt at all where its AMX code is broken.
    state = amx.protect(package)
    try:
        llm = package.Llama(path, **arguments)
    except ValueError as why:
        raise ModelError(f"{path}: {why}") from why
    return llm, lambda: {"loaded": False, "stock_amx": state}


def _generate(llm, tokens, limit, args):
    """Tokens, text, and the clock: at the start, after the prompt, after every further token."""
    out, text = [], []
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    times = [time.perf_counter()]
    for token in llm.generate(tokens, temp=args.temp):
        times.append(time.perf_counter())
        if _is_end(llm, token):
            break
        out.append(token)
        piece = decoder.decode(_piece(llm, token))
        text.append(piece)
        if not args.json:
            print(piece, end="", flush=True)
        if len(out) >= limit:
            break
    tail = decoder.decode(b"", final=True)
    if tail and not args.json:
        print(tail, end="", flush=True)
    return out, "".join(text) + tail, times


def _is_end(llm, token: int) -> bool:
    import llama_cpp

    return llama_cpp.llama_cpp.llama_vocab_is_eog(llm._model.vocab, token)


def _piece(llm, token: int) -> bytes:
    # llama_cpp's own detokenize gives up on pieces of more than 32 bytes.
    import llama_cpp

    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = llama_cpp.llama_cpp.llama_token_to_piece(
            llm._model.vocab, token, buffer, size, 0, False
        )
        if n >= 0:
            return buffer.raw[:n]
        size = -n


def _whole(name: str, least: int):
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value < 1 << 31:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return value

    convert.__name__ = name
    return convert


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value

"""`octet calibrate`: what the inputs of a model's products are like, on a text of one's own."""

import argparse
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from .. import header, runtime
from ..collector import Collector
from ..errors import ModelError, OctetError, UsageError, one_line
from ..gguf_tools import imatrix, rotation
from ..gguf_tools.errors import shown
from ..gguf_tools.evaluate import inputs
from ..gguf_tools.reader import Model
from ..gguf_tools.stopping import postponed, stoppable
from ..gguf_tools.writer import check_target
from .run import _whole, open_model

HELP = "Measure a model's activations on a text: ranges and importance, for convert."
EXAMPLE = """octet calibrate model-f16.gguf text.txt -o stats.gguf

The result is an importance matrix (GGUF), which octet convert --imatrix and llama-quantize
--imatrix read. Besides what llama.cpp keeps in one, it holds the largest value of every channel,
and both figures in the rotated basis. Experts that the text never reached count as neutral; they
are listed. Give it text like what the model will be used for."""

# Rows of logits that are computed at once count in memory, and every row counts: without it, the
# last layer would see only the last token of a batch.
_LOGIT_BYTES = 64 << 20
_SMALLEST_BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a GGUF file, best the one that will be converted")
    add("text", metavar="TEXT", help="a text file")
    add("-o", "--output", metavar="STATS", required=True, help="the importance matrix to write")
    add(
        *("--tokens",),
        **{"metavar": "N", "type": _whole("--tokens", 1), "default": 32768},
        help="of the text at most (%(default)s)",
    )
    add(
        *("--chunk",),
        **{"metavar": "N", "type": _whole("--chunk", 2), "default": 512},
        help="tokens that are read in one context, each chunk begun anew (%(default)s)",
    )
    add("--rotate", metavar="N", default="auto", help="as convert's: auto|128|64|32|0 (auto = 128)")
    add("--seed", metavar="N", type=_whole("--seed", 0), default=0, help="as convert's")
    add(
        *("--gram",),
        metavar="PATTERN",
        help="also keep x·xᵀ for these weights (name patterns, * for all): K × K numbers for each "
        "input, times the experts",
    )
    add(
        *("--threads",),
        **{"metavar": "N", "type": _whole("--threads", 1)},
        default=len(os.sched_getaffinity(0)),
        help="CPU threads (all: %(default)s)",
    )
    add("--force", action="store_true", help="overwrite STATS")


def run(args: argparse.Namespace) -> dict:
    """Measure and write; the result tells which experts saw nothing."""
    with stoppable():
        return _run(args)


def _run(args: argparse.Namespace) -> dict:
    if args.rotate not in rotation.WISHES:
        raise UsageError(f"--rotate {args.rotate}: must be one of {', '.join(rotation.WISHES)}")
    block = rotation.WISHES[args.rotate]
    if args.seed > 65535:
        raise UsageError(f"--seed {args.seed}: must be a number from 0 to 65535")
    text = inputs.read_text(args.text)
    with Model(args.model) as model:
        target = check_target(args.output, args.force, [s.path for s in model.shards] + [args.text])
        shapes = {t.name: t.shape for t in model.tensors.values() if len(t.shape) > 1}
    patterns = [p.strip() for p in (args.gram or "").split(",") if p.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in shapes):
            raise UsageError(f"--gram {pattern}: no weight of {args.model} is called so")

    def gram(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    package = runtime.import_llama_cpp()
    collector = Collector(package, shapes, block, args.seed, gram)
    chunks, tokens = feed(package, args, text, collector)
    contents = imatrix.Contents(
        datasets=[Path(args.text).name],
        chunks=chunks,
        chunk_size=args.chunk,
        block=block,
        seed=args.seed,
        products=collector.products(),
        input_of=collector.input_of,
        grams={n: s.gram for n, s in collector.sums.items() if s.gram is not None},
    )
    size = imatrix.write(target, contents)
    return {
        "model": args.model,
        "text": args.text,
        "out": args.output,
        "bytes": size,
        "tokens": tokens,
        "chunks": chunks,
        "rotation": block,
        "products": len(collector.input_of),
        "inputs": len(collector.sums),
        "grams": len(contents.grams),
        "unseen": {
            name: (~s.seen).nonzero()[0].tolist()
            for name, s in contents.products.items()
            if not s.seen.all()
        },
    }


def measure(model: str, text: str, output, tokens: int) -> None:
    """What `octet calibrate` does by default, for another command."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    run(parser.parse_args([model, text, "-o", str(output), "--tokens", str(tokens)]))


def render(result: dict) -> str:
    """What was measured, and what was not."""
    lines = [
        f"{result['model']} -> {result['out']}: {result['products']} products with "
        f"{result['inputs']} inputs, on {result['tokens']} tokens"
    ]
    unseen = result["unseen"]
    for name, experts in list(unseen.items())[:20]:
        lines.append(
            f"  no text reached {shown(name)} expert {', '.join(map(str, experts))}: neutral"
        )
    if len(unseen) > 20:
        lines.append(f"  … and experts of {len(unseen) - 20} more weights; --json lists them")
    return "\n".join(lines)


def feed(package, args, text: str, collector: Collector) -> tuple[int, int]:
    """The text through the model; how many chunks and tokens it was."""
    from llama_cpp import _internals
    from tqdm import tqdm

    found = header.read(args.model)
    chunk = min(args.chunk, found.context_length or args.chunk)
    # A context of its own, since llama_cpp.Llama takes no callback; the one it makes stays small.
    small = {"n_ctx": 32, "n_batch": 32, "swa_full": False, "verbose": False}
    llm, _ = open_model(args.model, not found.guarded, found, **small)
    vocab = llm.n_vocab()
    bos = [llm.token_bos()] if llm._model.add_bos_token() else []
    # No vocabulary has tokens this long on average; splitting all of a long text takes a while.
    ids = llm.tokenize(text[: 64 * args.tokens].encode(), add_bos=False)[: args.tokens]
    room = chunk - len(bos)
    pieces = [bos + ids[i : i + room] for i in range(0, len(ids), room)]
    batch_size = max(_SMALLEST_BATCH, min(512, chunk, _LOGIT_BYTES // (4 * vocab)))

    params = package.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = chunk, batch_size, batch_size
    params.n_threads = params.n_threads_batch = args.threads
    params.swa_full = False
    params.cb_eval = collector.callback
    try:
        context = _internals.LlamaContext(model=llm._model, params=params, verbose=False)
        batch = _internals.LlamaBatch(n_tokens=batch_size, embd=0, n_seq_max=1, verbose=False)
        with tqdm(
            *(None, "calibrating", sum(map(len, pieces))),
            unit="token",
            disable=not sys.stderr.isatty(),
            file=sys.stderr,
            leave=False,
        ) as bar:
            for piece in pieces:
                context.kv_cache_clear()
                for at in range(0, len(piece), batch_size):
                    part = piece[at : at + batch_size]
                    batch.set_batch(part, n_past=at, logits_all=True)
                    collector.begin()
                    with postponed() as collector.stopping:
                        context.decode(batch)
                        package.llama_synchronize(context.ctx)
                    collector.check()
                    bar.update(len(part))
    except (ValueError, RuntimeError) as why:
        if isinstance(why, OctetError):
            raise
        raise ModelError(f"{args.model}: {one_line(why)}") from why
    finally:
        llm.close()
    return len(pieces), sum(map(len, pieces))

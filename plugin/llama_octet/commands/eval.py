"""`octet eval`: how far candidates are from a control, and how fast and large they are.

Every model runs alone, in a process of its own. The control runs first; its logits are kept on
disk, packed, and every later run is compared with them, the control's own second run to begin with.
What is found is kept until the end, so that the same command goes on where the last one stopped.
"""

import argparse
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import eval_store, header
from ..errors import OctetError, UsageError
from ..eval_runs import (
    LOGIT_BYTES,
    PROBE_PROMPT,
    PROBE_TOKENS,
    REPEATS,
    Run,
    Spec,
    parse_spec,
    progress,
    sample_inputs,
)
from ..eval_store import Store
from ..gguf_tools.evaluate import inputs, layers, metrics, report
from ..gguf_tools.evaluate.inputs import Item
from ..gguf_tools.reader import Model
from .run import _whole

HELP = "Compare models with a control: KL divergence, answers, speed, memory."
EXAMPLE = """octet eval model-f16.gguf model-int8.gguf --text wiki.txt --mmlu questions.json

Each model is FILE[@SETTING]…, a setting one of @stock (plain llama.cpp), @plugin, and
@OCTET_NAME=VALUE (a switch). The control runs in stock unless told otherwise, candidates in the
plugin: octet eval a-f16.gguf a-int8.gguf a-int8.gguf@OCTET_W8A8=0 a-q8.gguf@stock --text wiki.txt

KL(control || candidate) in nats, over the whole vocabulary, at every compared position:
  --text     chunks of --chunk tokens, each begun anew; all but the first --skip positions
  --prompts  the last token of each prompt (first-token KL), and the control's greedy continuation
  --mmlu     where the answer is due; these positions are in `kl` only if nothing else is asked for
  --layers   the error of each product alone, on --layer-tokens of a text, given the control's
             inputs: which weights lose most

The control is run twice and must agree with itself to the last bit. Speeds are medians of
--repeats prompts of 512 tokens and of 32 tokens generated after each; from 6 on, the smallest and
the largest are an interval for them. Intervals (95 %) of KL and flips are by bootstrap.

If it is interrupted, the same command goes on from there: what is found is kept in TMPDIR."""


class Interrupted(OctetError):
    """Stopped by the user, with something to go on from."""

    exit_code = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("control", metavar="CONTROL", help="the model to be faithful to")
    add("candidates", metavar="CANDIDATE", nargs="*", help="the models to be compared with it")
    add("--text", metavar="FILE", help="a text")
    add("--mmlu", metavar="FILE", help="multiple-choice questions (JSON: samples, each with")
    parser._actions[-1].help += " prompt, options, input_label)"
    add("--prompts", metavar="FILE", help="prompts: one per line, or a JSON list")
    add("--layers", metavar="FILE", help="a text for the error of each product (calibration text)")
    add("--report", metavar="DIR", help="write eval.html and eval.json into this folder")
    whole = {"metavar": "N", "type": _whole("a number", 1)}
    add("--positions", **whole, default=2000, help="compared in --text at most (%(default)s)")
    add("--chunk", **whole, default=256, help="tokens per piece of --text (%(default)s)")
    add(
        *("--skip",),
        metavar="N",
        type=_whole("a number", 0),
        default=0,
        help="positions of each chunk that only give context (%(default)s)",
    )
    add("--continue", dest="length", **whole, default=32, help="tokens after each prompt (32)")
    add("--layer-tokens", **whole, default=256, help="of --layers (%(default)s)")
    add("--repeats", **whole, default=REPEATS, help="speed measurements of each (%(default)s)")
    cpus = len(os.sched_getaffinity(0))
    add("--threads", **whole, default=cpus, help="CPU threads (all: %(default)s)")


def run(args: argparse.Namespace) -> dict:
    """Run all models; the control is the first of the candidates, against itself."""
    if not (args.text or args.mmlu or args.prompts):
        raise UsageError("nothing to compare on: give --text, --mmlu or --prompts")
    if args.skip + 2 > args.chunk:
        raise UsageError(f"--chunk {args.chunk}: must be at least two more than --skip")
    control = parse_spec(args.control, stock=True)
    specs = [control, *(parse_spec(c, stock=False) for c in args.candidates)]
    for spec in specs:
        if header.read(spec.path).guarded and spec.stock:
            raise UsageError(
                f"{spec.text}: is rotated int8, which stock llama.cpp would misread: add @plugin"
            )
    _check_inputs(args)
    if args.report:
        report.prepare(args.report)
    inputs_of = [args.text, args.mmlu, args.prompts, args.layers]
    key = eval_store.key_of(
        *(1, control.text, eval_store.stamp(control.path), control.environment, _switches()),
        [path and eval_store.stamp(path) for path in inputs_of],
        [args.positions, args.chunk, args.skip, args.length, args.threads, args.layer_tokens],
    )
    store = Store(key)
    try:
        with store:
            results, plan = _all(store, specs, args)
    except KeyboardInterrupt:
        if not store.kept:
            raise
        raise Interrupted(
            f"interrupted; what is found so far ({store.bytes / 1e6:.0f} MB) is kept in "
            f"{store.folder}: the same command goes on from there"
        ) from None
    result = {
        "control": args.control,
        "inputs": {
            "text": args.text,
            "mmlu": args.mmlu,
            "prompts": args.prompts,
            "chunk": args.chunk,
            "skip": args.skip,
            "continue": args.length,
            "layers": args.layers,
            "threads": args.threads,
            "vocabulary": plan.vocab,
        },
        "candidates": results,
    }
    if args.report:
        report.write(args.report, result)
    for one in results:
        del one["quantiles"], one["by_position"]
    return result


def _all(store: Store, specs: list[Spec], args) -> tuple[list[dict], "_Plan"]:
    """The results of all models, the control's first, and what they were compared on."""
    _check_memory(specs[0], 0)
    plan = _reference(store, specs[0], args)
    samples = None
    if args.layers:
        path = store.folder / "layers.npz"
        if not path.exists():
            sample_inputs(specs[0], args.layers, path, args.layer_tokens, args.threads)
        samples = np.load(path)
    results = []
    for number, spec in enumerate(specs):
        library = Path(__file__).parents[1] / "libggml-octet.so"
        name = eval_store.key_of(
            *(number == 0, spec.text, eval_store.stamp(spec.path), spec.environment, spec.stock),
            *(args.repeats, eval_store.stamp(library) if library.exists() else 0),
        )
        found = store.result(name)
        if not found:
            _check_memory(spec, plan.vocab)
            found = _candidate(store, name, spec, plan, args)
            found["layers"] = _layers(specs[0], spec, samples) if samples and number else None
            store.save_result(name, found)
        results.append(found)
        if number == 0:
            _check_control(found, spec)
        if sys.stderr.isatty():
            print(f"octet: {spec.text}: {report.line(found)}", file=sys.stderr)
    return results, plan


def _layers(control: Spec, spec: Spec, samples) -> list[dict]:
    rounds = spec.stock or spec.environment.get("OCTET_W8A8") != "0"
    with Model(control.path) as before, Model(spec.path) as after:
        return layers.errors(before, after, samples, rounds)


def _switches() -> dict:
    return {k: v for k, v in os.environ.items() if k.startswith("OCTET_") and v}


def _check_memory(spec: Spec, vocab: int) -> None:
    # The weights, mapped or packed; logits in the model, on the way and here, and in f64.
    with Model(spec.path) as model:
        needed = model.file_bytes + 3 * LOGIT_BYTES + 40 * vocab
    eval_store.check_memory(spec.text, needed)


def _check_inputs(args) -> None:
    """What is wrong with a file should be said before any model is loaded."""
    for path, read in (
        (args.text, inputs.read_text),
        (args.prompts, inputs.read_prompts),
        (args.layers, inputs.read_text),
        (args.mmlu, inputs.read_questions),
    ):
        if path:
            read(path)


# ---- what to compare on ----


@dataclass
class _Plan:
    vocab: int
    bos: list[int]
    items: list[Item] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return sum(item.positions for item in self.items)

    @property
    def probe(self) -> list[int]:
        """Tokens to measure speed with."""
        tokens = [t for item in self.items for t in item.tokens[:PROBE_PROMPT]]
        return (tokens * (PROBE_PROMPT // len(tokens) + 1))[:PROBE_PROMPT]

    @property
    def ctx(self) -> int:
        longest = max(len(item.tokens) for item in self.items)
        return -(-max(longest, PROBE_PROMPT + PROBE_TOKENS) // 256) * 256


def _plan(child: Run, args) -> _Plan:
    plan = _Plan(child.vocab, child.bos)
    if args.text:
        # Far more than what is needed; splitting all of a long text takes a while.
        needed = args.positions * args.chunk // (args.chunk - args.skip) + args.chunk
        tokens = child.tokenize(inputs.read_text(args.text)[: 64 * needed])
        plan.items += inputs.chunks(tokens, plan.bos, args.chunk, args.skip, args.positions)
        if not plan.items:
            raise UsageError(f"{args.text}: too short to compare on")
    if args.prompts:
        prompts = [
            child.tokenize(text, bos=True, special=True)
            for text in inputs.read_prompts(args.prompts)
        ]
        if not all(prompts):
            raise UsageError(f"{args.prompts}: a prompt has no tokens for this model")
        child.open(max(map(len, prompts)) + args.length)
        for prompt in progress(prompts, "the control's continuations"):
            plan.items.append(inputs.continued(prompt, child.greedy(prompt, args.length)))
    for number, question in enumerate(inputs.read_questions(args.mmlu) if args.mmlu else [], 1):
        plan.items.append(_question(child, question, f"{args.mmlu}: sample {number}"))
    return plan


def _question(child: Run, question: inputs.Question, where: str) -> Item:
    prompt = child.tokenize(question.prompt, bos=True)
    options = []
    for option in question.options:
        # Together with the prompt: alone, some vocabularies would put a blank before it.
        whole = child.tokenize(question.prompt + option, bos=True)
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            raise OctetError(f"{where}: option {option!r} is no continuation for this vocabulary")
        options.append(whole[len(prompt)])
    if len(set(options)) != len(options):
        raise OctetError(f"{where}: two options begin with the same token of this vocabulary")
    return inputs.question(prompt, options, question.label)


# ---- running ----


def _reference(store: Store, spec: Spec, args) -> _Plan:
    """Make the plan and keep the control's logits, or what of them is not yet there."""
    saved = store.plan()
    plan = _Plan(**saved) if saved else None
    with store.log("reference") as log:
        if plan and len(log.ends) == len(plan.items):
            return plan
        with Run(spec, plan.ctx if plan else 256, args.threads) as child:
            if plan is None:
                plan = _plan(child, args)
                store.save_plan(plan.vocab, plan.bos, plan.items)
            packed = plan.positions * plan.vocab * 4 * eval_store.PACKED_SHARE
            eval_store.check_disk(store.folder, packed - (log.ends or [0])[-1])
            child.open(plan.ctx)
            log.restart(_resumable(child, plan, len(log.ends)))
            for item in progress(plan.items, f"{spec.text} (control)", len(log.ends)):
                for logits in child.logits(item):
                    eval_store.append_logits(log, logits)
                log.finish(_answer(item, logits))
        return plan


def _resumable(child: Run, plan: _Plan, done: int) -> int:
    """How many finished items to go on from, so that all that follows is as if never stopped."""
    items = plan.items
    while 0 < done < len(items) and not child.starts_anew(items[done - 1].tokens, items[done]):
        done -= 1
    return done


def _answer(item: Item, logits: np.ndarray) -> int | None:
    return metrics.choice(logits[0], item.options) if item.kind == "question" else None


def _candidate(store: Store, name: str, spec: Spec, plan: _Plan, args) -> dict:
    with (
        Run(spec, plan.ctx, args.threads) as child,
        store.log("reference") as reference,
        store.log(name) as log,
    ):
        _check_vocabulary(child, plan)
        done = _resumable(child, plan, len(log.ends))
        log.restart(done)
        reference.file.seek(reference.ends[done - 1] if done else 0)
        for item in progress(plan.items, spec.text, done):
            at = 0
            for logits in child.logits(item):
                control = np.empty_like(logits)
                eval_store.read_logits(reference, control)
                targets = item.targets[at : at + len(logits)]
                try:
                    log.append(metrics.compare(control, logits, targets).table().tobytes())
                except OctetError as why:
                    raise OctetError(f"{spec.text}: {why}") from None
                at += len(logits)
            log.finish(_answer(item, logits))
        speed = child.speed(plan.probe, args.repeats)
        used = child.finish()
        used["wall_s"] += log.seconds
        log.file.seek(0)
        found = metrics.Comparison.of_table(np.frombuffer(log.file.read()))
        return _result(spec, plan, found, reference.answers, log.answers, speed, used)


def _result(spec, plan, all_found, given, answers, speed, used) -> dict:
    parts: dict[str, list] = {"text": [], "prompt": [], "question": []}
    firsts, at = [], 0
    for item in plan.items:
        parts[item.kind].append(all_found.part(at, at + item.positions))
        if item.kind == "prompt":
            firsts.append(all_found.kl[at])
        at += item.positions
    found = {kind: metrics.joined(some) for kind, some in parts.items()}
    read = metrics.joined([found["text"], found["prompt"]])
    if not len(read.kl):
        read = found["question"]
    mmlu = None
    asked = [number for number, item in enumerate(plan.items) if item.kind == "question"]
    if asked:
        mmlu = metrics.answers(
            [given[i] for i in asked],
            [answers[i] for i in asked],
            [plan.items[i].label for i in asked],
        )
        mmlu["kl_mean"] = float(found["question"].kl.mean())
        mmlu["kl_mean_interval"] = metrics.interval(found["question"].kl, run=1)
        mmlu["kl"] = metrics.spread(found["question"].kl)
    status = used.pop("status")
    return {
        "file": spec.text,
        "runtime": "stock" if spec.stock else "plugin",
        "file_mib": os.path.getsize(spec.path) / 2**20,
        "positions": len(read.kl),
        "kl": {**metrics.spread(read.kl), "mean_interval": metrics.interval(read.kl)},
        "top1": float(read.same_top.mean()),
        "ppl_ratio": metrics.perplexity_ratio(found["text"]),
        "first_token_kl": float(np.mean(firsts)) if firsts else None,
        "mmlu": mmlu,
        **speed,
        **used,
        "kernels": {
            name: of["calls"] for name, of in status.get("kernels", {}).items() if of.get("calls")
        },
        "quantiles": [float(q) for q in np.quantile(read.kl, np.linspace(0, 1, 201))],
        "by_position": metrics.by_position(
            [item.first for item in plan.items if item.kind == "text"],
            [part.kl for part in parts["text"]],
        ),
    }


def _check_vocabulary(child: Run, plan: _Plan) -> None:
    if (child.vocab, child.bos) != (plan.vocab, plan.bos):
        raise OctetError(
            f"{child.spec.text}: has another vocabulary ({child.vocab} tokens) than the control "
            f"({plan.vocab}): only models with the same can be compared"
        )


def _check_control(result: dict, control: Spec) -> None:
    if result["kl"]["max"] != 0 or result["top1"] != 1:
        raise OctetError(
            f"{control.text}: disagrees with itself when it runs again (KL up to "
            f"{result['kl']['max']:.2g}): nothing can be measured against it"
        )


def render(result: dict) -> str:
    """The table, one model below the other."""
    return report.table(result)

"""`octet eval`: how far candidates are from a control, and how fast and large they are.

Every model runs alone, in a process of its own. The control runs first; its logits are kept on
disk and every later run is compared with them, the control's own second run to begin with.
"""

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field

import numpy as np

from .. import header
from ..errors import OctetError, UsageError
from ..eval_runs import PROBE_PROMPT, PROBE_TOKENS, Run, Spec, parse_spec
from ..gguf_tools.evaluate import inputs, metrics, report
from ..gguf_tools.evaluate.inputs import Item
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
The control is run twice and must agree with itself to the last bit. Speeds are medians of
repeated prompts of 512 tokens and of 32 tokens generated after each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("control", metavar="CONTROL", help="the model to be faithful to")
    add("candidates", metavar="CANDIDATE", nargs="*", help="the models to be compared with it")
    add("--text", metavar="FILE", help="a text")
    add("--mmlu", metavar="FILE", help="multiple-choice questions (JSON: samples, each with")
    parser._actions[-1].help += " prompt, options, input_label)"
    add("--prompts", metavar="FILE", help="prompts: one per line, or a JSON list")
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
    results = []
    with tempfile.TemporaryFile(prefix="octet-eval-") as reference:
        with Run(control, 256, args.threads) as child:
            plan = _plan(child, args)
            _check_space(plan)
            child.open(plan.ctx)
            given = _reference(child, plan, reference)
        for number, spec in enumerate(specs):
            results.append(_candidate(spec, plan, reference, given, args.threads))
            if number == 0:
                _check_control(results[0], control)
            if sys.stderr.isatty():
                print(f"octet: {spec.text}: {report.line(results[-1])}", file=sys.stderr)
    result = {
        "control": args.control,
        "inputs": {
            "text": args.text,
            "mmlu": args.mmlu,
            "prompts": args.prompts,
            "chunk": args.chunk,
            "skip": args.skip,
            "continue": args.length,
            "threads": args.threads,
            "vocabulary": plan.vocab,
        },
        "candidates": results,
    }
    if args.report:
        report.write(args.report, result)
    for one in results:
        del one["quantiles"]
    return result


def _check_inputs(args) -> None:
    """What is wrong with a file should be said before any model is loaded."""
    for path, read in (
        (args.text, inputs.read_text),
        (args.prompts, inputs.read_prompts),
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
        for prompt in _progress(prompts, "the control's continuations"):
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


def _check_space(plan: _Plan) -> None:
    needed = plan.positions * plan.vocab * 4
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OctetError(
            f"{folder}: the control's logits need {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are "
            "free: set TMPDIR to another folder, or compare on less (--positions)"
        )


# ---- running ----


def _reference(child: Run, plan: _Plan, file) -> list[int]:
    """Keep the control's logits; its answers to the questions."""
    answers = []
    for item in _progress(plan.items, f"{child.spec.text} (control)"):
        for logits in child.logits(item):
            file.write(logits)
        if item.kind == "question":
            answers.append(metrics.choice(logits[0], item.options))
    file.flush()
    return answers


def _candidate(spec: Spec, plan: _Plan, file, given: list[int], threads: int) -> dict:
    with Run(spec, plan.ctx, threads) as child:
        _check_vocabulary(child, plan)
        parts: dict[str, list] = {"text": [], "prompt": [], "question": []}
        answers = []
        file.seek(0)
        for item in _progress(plan.items, spec.text):
            at = 0
            for logits in child.logits(item):
                control = np.empty_like(logits)
                file.readinto(memoryview(control).cast("B"))
                targets = item.targets[at : at + len(logits)]
                try:
                    parts[item.kind].append(metrics.compare(control, logits, targets))
                except OctetError as why:
                    raise OctetError(f"{spec.text}: {why}") from None
                at += len(logits)
            if item.kind == "question":
                answers.append(metrics.choice(logits[0], item.options))
        speed = child.speed(plan.probe)
        used = child.finish()
    return _result(spec, plan, parts, given, answers, speed, used)


def _result(spec, plan, parts, given, answers, speed, used) -> dict:
    found = {kind: metrics.joined(some) for kind, some in parts.items()}
    read = metrics.joined([found["text"], found["prompt"]])
    if not len(read.kl):
        read = found["question"]
    firsts, at = [], 0
    for item in plan.items:
        if item.kind == "prompt":
            firsts.append(found["prompt"].kl[at])
            at += item.positions
    mmlu = None
    if answers:
        labels = [item.label for item in plan.items if item.kind == "question"]
        mmlu = metrics.answers(given, answers, labels)
        mmlu["kl_mean"] = float(found["question"].kl.mean())
    status = used.pop("status")
    return {
        "file": spec.text,
        "runtime": "stock" if spec.stock else "plugin",
        "file_mib": os.path.getsize(spec.path) / 2**20,
        "positions": len(read.kl),
        "kl": metrics.spread(read.kl),
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


def _progress(items, what: str):
    from tqdm import tqdm

    return tqdm(items, desc=what, disable=not sys.stderr.isatty(), file=sys.stderr, leave=False)


def render(result: dict) -> str:
    """The table, one model below the other."""
    return report.table(result)

"""Converting a model: dense weights to rotated int8, experts to int8 or codebook types.

The file is written front to back in one pass. Rows are read, changed and written in jobs of at most
a million weights on all cores, so memory does not grow with the file, its tensors or the cores.
"""

import argparse
import contextlib
import hashlib
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from . import experts, ggml, metadata, plan, rotation, writer
from .errors import OctetError, UsageError, shown
from .imatrix import Importance
from .reader import Model
from .rounding import METHODS, Rounding
from .smoothing import EXACT, FLOATS, Smoothing

EXAMPLE = "octet convert model-f16.gguf model-int8.gguf --experts iq3_s:iq4_nl"
_JOB_WEIGHTS = 1 << 20
_SMALLEST_JOB = 1 << 17
_COPY_BYTES = 8 << 20
_FILE_TYPE_Q8_0 = 7  # of general.file_type


# ---- the command ---------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `octet convert` to a parser."""
    parser.description = (
        "Convert a GGUF model (float or quantized, one file or split): dense weights become "
        "rotated int8, experts int8 or codebook types. Embeddings, norms, routers, biases and the "
        "output head keep their type."
    )
    parser.epilog = f"example: {EXAMPLE}"
    add = parser.add_argument
    add("input", metavar="IN.gguf", help="the model; of a split one, the first file")
    add("output", metavar="OUT.gguf", help="the converted model, always one file")
    add(
        *("--int8",),
        metavar="PATTERN|none",
        default="*",
        help="weights that become int8: comma-separated name patterns (default: all that can). "
        "The output head only where named in full: '*,output.weight'",
    )
    add(
        *("--rotate",),
        default="auto",
        help="auto|128|64|32|0: rotation block (default auto = 128, with --scale-group 32 32)",
    )
    add("--scale-group", default="row", help="row|128|32: columns per int8 scale (default row)")
    add(
        *("--experts",),
        metavar="GATE_UP:DOWN",
        help=f"codebook types of the experts, of {', '.join(plan.CODEBOOKS)}, e.g. iq3_s:iq4_nl "
        "(default: int8 as the rest). Rows that do not fill a type's blocks get iq4_nl",
    )
    add(
        *("--rotate-experts",),
        default="0",
        metavar="BLOCK",
        help="auto|128|64|32|0: rotation block of codebook experts (default 0, not rotated)",
    )
    add(
        *("--round",),
        metavar="nearest|gptq",
        default="nearest",
        help="gptq: later columns make up for the rounding of earlier ones; needs an --imatrix "
        "made with octet calibrate --gram (default nearest)",
    )
    add("--imatrix", metavar="FILE", help="importance matrix (GGUF): for codebook experts, gptq")
    add("--keep", metavar="PATTERN", help="weights that keep their type: name patterns")
    add("--seed", default="0", metavar="N", help="of the rotation signs, 0 to 65535 (default 0)")
    add("--strict", action="store_true", help="fail if a weight cannot get the wished type")
    add("--force", action="store_true", help="overwrite OUT.gguf")


def run(args: argparse.Namespace, **more) -> dict:
    """Do what parsed arguments, and `more` of those of `convert`, ask; returns its result."""
    return convert(args.input, args.output, **options(args), **more)


def options(args: argparse.Namespace) -> dict:
    """The options of `convert` that parsed arguments hold."""
    return dict(
        int8=args.int8,
        rotate=args.rotate,
        scale_group=args.scale_group,
        experts=args.experts,
        rotate_experts=args.rotate_experts,
        rounding=args.round,
        imatrix=args.imatrix,
        keep=args.keep,
        seed=args.seed,
        strict=args.strict,
        force=args.force,
        progress=sys.stderr.isatty(),
    )


def render(result: dict) -> str:
    """The result of `convert` as a short text."""
    lines = [f"{result['in']} -> {result['out']}"]
    for group in result["summary"]:
        lines.append(
            f"  {group['tensors']:5} × {group['what']:<24} "
            f"{group['bytes_in'] / 1e6:9.1f} -> {group['bytes_out'] / 1e6:9.1f} MB"
        )
    lines.append(
        f"  {'file':<32} {result['bytes_in'] / 1e6:9.1f} -> {result['bytes_out'] / 1e6:9.1f} MB, "
        f"{result['seconds']:.1f} s"
    )
    if result["guard"]:
        lines.append(
            f"  architecture {shown(result['architecture'])} is hidden behind '{metadata.GUARD}': "
            "a runtime that cannot rotate refuses the file"
        )
    for notes in (
        [f"{shown(t['name'])}: {t['note']}" for t in result["tensors"] if t["missed"]],
        result["notes"],
    ):
        lines += [f"  note: {note}" for note in notes[:10]]
        if len(notes) > 10:
            lines.append(f"  … and {len(notes) - 10} more of this kind; --json lists them")
    return "\n".join(lines)


# ---- options -------------------------------------------------------------------------------


def _patterns(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _choice(option: str, value, choices: dict):
    if str(value) not in choices:
        raise UsageError(f"{option} {value}: must be one of {', '.join(choices)}")
    return choices[str(value)]


def _seed(value) -> int:
    # Not int(): it takes ' 7', '1_0' and True
    if not re.fullmatch(r"[0-9]{1,5}", str(value)) or int(value) > 65535:
        raise UsageError(f"--seed {value}: must be a number from 0 to 65535")
    return int(value)


def _expert_types(text: str | None) -> tuple[str | None, str | None]:
    if text is None:
        return None, None
    names = text.lower().split(":")
    if len(names) != 2 or not all(name in plan.CODEBOOKS for name in names):
        raise UsageError(
            f"--experts {text}: must be GATE_UP:DOWN, each one of {', '.join(plan.CODEBOOKS)}"
        )
    return names[0], names[1]


def planned(input, **options) -> list[plan.Step]:
    """What `convert` with these options would make of each tensor of `input`."""
    named = ("int8", "rotate", "scale_group", "experts", "rotate_experts", "keep")
    with Model(input) as model:
        return plan.build(model, _wishes(**{name: options[name] for name in named}))


def check_target(input, output, force: bool) -> None:
    """Raise what `convert` would raise about its two files."""
    with Model(input) as model:
        writer.check_target(os.fspath(output), force, [s.path for s in model.shards])
        if metadata.read(model) is not None:
            raise OctetError(f"{input}: is already converted: give the model it was made from")


def _wishes(int8, rotate, scale_group, experts, rotate_experts, keep) -> plan.Wishes:
    gate_up, down = _expert_types(experts)
    int8_patterns = _patterns(int8)
    if not int8_patterns:
        raise UsageError("--int8 needs a name pattern, or none")
    group = _choice("--scale-group", scale_group, {"row": 0, "128": 128, "32": 32})
    # A block as long as a scale loses least (docs/fidelity.md).
    blocks = {**rotation.WISHES, "auto": 32 if group == 32 else rotation.WISHES["auto"]}
    return plan.Wishes(
        int8=[] if int8_patterns == ["none"] else int8_patterns,
        keep=_patterns(keep),
        rotate=_choice("--rotate", rotate, blocks),
        scale_group=group,
        gate_up=gate_up,
        down=down,
        rotate_experts=_choice("--rotate-experts", rotate_experts, rotation.WISHES),
    )


def _check_rounding(method: str, imatrix, other_use: bool) -> None:
    if method not in METHODS:
        raise UsageError(f"--round {method}: must be one of {', '.join(METHODS)}")
    if method == "gptq" and imatrix is None:
        raise UsageError("--round gptq: needs an --imatrix made with octet calibrate --gram '*'")
    if method == "nearest" and imatrix is not None and not other_use:
        raise UsageError(
            "--imatrix: is only used for codebook experts and by --round gptq: give --experts or "
            "--round gptq too"
        )


# ---- converting ----------------------------------------------------------------------------


def convert(
    input,
    output,
    *,
    int8: str = "*",
    rotate="auto",
    scale_group="row",
    experts: str | None = None,
    rotate_experts="0",
    rounding: str = "nearest",
    smoothing: Smoothing | None = None,
    imatrix=None,
    keep: str | None = None,
    seed=0,
    strict: bool = False,
    force: bool = False,
    progress: bool = False,
    threads: int | None = None,
) -> dict:
    """Convert the GGUF file `input` into `output`; options as those of `octet convert`.

    The same input and options give the same bytes (with gptq on the same machine: matrix products
    of floats depend on it). Returns what `octet convert --json` prints:
    in, out, architecture, guard, seed, bytes_in, bytes_out, seconds, summary, notes, and tensors,
    a list of {name, shape, from, to, rotation, scale_group, note, missed, bytes_in, bytes_out}.
    Raises OctetError (UsageError for options that make no sense); then nothing is left behind.
    """
    started = time.monotonic()
    wishes = _wishes(int8, rotate, scale_group, experts, rotate_experts, keep)
    seed = _seed(seed)
    _check_rounding(rounding, imatrix, experts is not None or smoothing is not None)
    smoothing = smoothing or Smoothing()
    threads = threads or len(os.sched_getaffinity(0))

    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(input))
        target = writer.check_target(os.fspath(output), force, [s.path for s in model.shards])
        if metadata.read(model) is not None:
            raise OctetError(f"{input}: is already converted: give the model it was made from")
        architecture = model.text("general.architecture")
        if not architecture:
            raise OctetError(f"{input}: is not a model: it has no general.architecture")
        steps = plan.build(model, wishes, smoothing)
        if strict:
            plan.check_strict(model, steps)
        weights = stack.enter_context(Importance(imatrix)) if imatrix is not None else None
        rounder = Rounding(rounding, weights, seed)
        notes = rounder.notes(steps)
        if all(step.copy for step in steps):
            notes.append("no weight of this model changes type")

        octet = metadata.Octet(
            base_architecture=architecture,
            tensors={s.tensor.name: (s.rotation, s.scale_group) for s in steps if s.listed},
            seed=seed,
            smoothing=smoothing.label,
            alpha=smoothing.alpha,
            tool=metadata.tool(),
        )
        stack.enter_context(stoppable())
        octet.source_sha256 = _sha256(model)
        entries = _entries(model, octet, steps)
        size = _write(target, entries, steps, rounder, threads, progress)

    return {
        "in": os.fspath(input),
        "out": os.fspath(output),
        "architecture": architecture,
        "guard": octet.rotated,
        "seed": seed,
        "smoothing": smoothing.label,
        "alpha": smoothing.alpha,
        "bytes_in": model.file_bytes,
        "bytes_out": size,
        "seconds": round(time.monotonic() - started, 3),
        "summary": _summary(steps),
        "notes": notes,
        "tensors": [_told(step) for step in steps],
    }


def write_float(input, output, smoothing: Smoothing, touched: Smoothing | None = None) -> None:
    """Write the model of `input` with a smoothing, but nothing rounded and nothing of ours in it.

    Tensors that `touched` (default: the smoothing itself) changes become F32 if their type rounds
    what a power of two does to it; with an empty smoothing that is the model to compare with.
    """
    touched = touched or smoothing
    with Model(input) as model, stoppable():
        target = writer.check_target(os.fspath(output), False, [s.path for s in model.shards])
        steps = []
        for tensor in model.tensors.values():
            own = tensor.type.name
            to = "f32" if touched.touches(tensor.name) and own not in EXACT else own
            of = smoothing if smoothing.touches(tensor.name) else None
            steps.append(plan.Step(tensor, "other", to, smoothing=of))
        threads = len(os.sched_getaffinity(0))
        _write(target, _entries(model, None, steps), steps, Rounding(), threads, False)


def _write(target, entries, steps, rounder, threads, progress) -> int:
    head = writer.header(
        entries, [(s.tensor.name, s.tensor.shape, s.type.id, s.size) for s in steps]
    )
    size = len(head) + sum(s.size + writer.padding(s.size) for s in steps)
    with writer.whole_file(target, size) as file, _bar(progress, size) as bar:
        file.write(head)
        bar.update(len(head))
        _write_data(file, steps, rounder, threads, bar.update)
    return size


def _told(step: plan.Step) -> dict:
    return {
        "name": step.tensor.name,
        "shape": list(step.tensor.shape),
        "from": step.tensor.type.name,
        "to": step.to,
        "rotation": step.rotation,
        "scale_group": step.scale_group,
        "note": step.note,
        "missed": step.missed,
        "bytes_in": step.tensor.size,
        "bytes_out": step.size,
    }


def _summary(steps: list[plan.Step]) -> list[dict]:
    groups: dict[str, list[plan.Step]] = {}
    for step in steps:
        part = {"gate_up": "experts ", "down": "experts "}.get(step.role, "")
        change = f"{step.tensor.type.name} kept" if step.copy else step.to
        if step.listed:
            change += f", rotated {step.rotation}" if step.rotation else ", not rotated"
        groups.setdefault(part + change, []).append(step)
    return [
        {
            "what": what,
            "tensors": len(members),
            "bytes_in": sum(s.tensor.size for s in members),
            "bytes_out": sum(s.size for s in members),
        }
        for what, members in sorted(groups.items(), key=lambda g: -sum(s.size for s in g[1]))
    ]


def _entries(model: Model, octet: metadata.Octet | None, steps: list[plan.Step]) -> list[bytes]:
    changed = {}
    if octet and octet.rotated:
        changed["general.architecture"] = writer.string("general.architecture", metadata.GUARD)
    if octet and octet.tensors and "general.file_type" in model.values:
        changed["general.file_type"] = writer.u32("general.file_type", _FILE_TYPE_Q8_0)
    if model.shards[0].alignment != writer.ALIGNMENT:
        changed["general.alignment"] = b""
    entries = [
        changed.get(k) or writer.copied(model, v)
        for k, v in model.values.items()
        if changed.get(k) != b""
    ]
    version = "general.quantization_version"
    if version not in model.values and any(s.type.quantized for s in steps):
        entries.append(writer.u32(version, 2))  # of the block layouts; 2 is the only one in use
    return entries + (octet.entries() if octet else [])


def _sha256(model: Model) -> str:
    shard = model.shards[0]
    digest = hashlib.sha256()
    for start in range(0, shard.bytes, _COPY_BYTES):
        digest.update(shard.read(start, min(_COPY_BYTES, shard.bytes - start)))
    return digest.hexdigest()


# ---- the data ------------------------------------------------------------------------------


def _write_data(file, steps, rounder, threads, wrote) -> None:
    """Run all jobs of all steps, a few ahead of the writer, and write their results in order."""
    pool = ThreadPoolExecutor(threads)
    try:
        ahead: deque = deque()

        def write_next() -> None:
            data = ahead.popleft().result()
            file.write(data)
            wrote(len(data))

        # Many threads get smaller jobs: what is in flight stays the same.
        weights = min(_JOB_WEIGHTS, max(_SMALLEST_JOB, 4 * _JOB_WEIGHTS // threads))
        for job in _jobs(steps, rounder, weights):
            ahead.append(pool.submit(*job))
            if len(ahead) > threads:
                write_next()
        while ahead:
            write_next()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _jobs(steps, rounder, weights):
    """All work in the order of the file, as functions with arguments that return bytes."""
    for step in steps:
        tensor = step.tensor
        rows_per_job = max(1, weights // tensor.columns)
        parts = (
            (row, min(rows_per_job, tensor.rows - row))
            for row in range(0, tensor.rows, rows_per_job)
        )
        if step.copy:
            for at in range(0, tensor.size, _COPY_BYTES):
                size = min(_COPY_BYTES, tensor.size - at)
                yield tensor.shard.read, tensor.start + at, size
        elif step.to in FLOATS:
            for part in parts:
                yield _float_rows, step, *part
        else:
            for expert, *part in experts.jobs(tensor, rows_per_job):
                yield _rounded_rows, step, rounder, expert, *part
        if writer.padding(step.size):
            yield bytes, writer.padding(step.size)


def _floats(step: plan.Step, row: int, rows: int) -> np.ndarray:
    weights = step.tensor.floats(row, rows)
    finite = np.isfinite(weights)
    if not finite.all():
        at = row + int(np.flatnonzero(~finite.all(axis=1))[0])
        raise OctetError(
            f"{step.tensor.shard.path}: {shown(step.tensor.name)} holds NaN or infinity in row "
            f"{at}: the model is damaged; nothing was written"
        )
    return step.smoothing.apply(step.tensor, weights, row) if step.smoothing else weights


def _float_rows(step: plan.Step, row: int, rows: int) -> bytes:
    try:
        return ggml.quantize(step.type, _floats(step, row, rows), None)
    except ValueError as error:
        raise _refuse(step, error) from None


def _refuse(step: plan.Step, error: ValueError) -> OctetError:
    return OctetError(
        f"{step.tensor.shard.path}: {shown(step.tensor.name)} cannot become {step.to}: {error} "
        "(give it to --keep)"
    )


def _rounded_rows(step: plan.Step, rounder: Rounding, expert: int, row: int, rows: int) -> bytes:
    weights = _floats(step, row, rows)
    try:
        return rounder.rows(step, weights, expert)
    except ValueError as error:
        raise _refuse(step, error) from None


# ---- around it -----------------------------------------------------------------------------


@contextlib.contextmanager
def stoppable():
    """Let a polite request to end (SIGTERM, SIGHUP) clean up first, like Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number, frame):
        raise OctetError(f"stopped by {signal.Signals(number).name}; nothing was written")

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _bar(progress: bool, total: int):
    from tqdm import tqdm

    with tqdm(total=total, unit="B", unit_scale=True, disable=not progress, file=sys.stderr) as bar:
        yield bar

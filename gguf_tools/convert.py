"""Converting a model: dense weights to rotated int8, experts to int8 or codebook types.

The file is written front to back in one pass.
"""

import contextlib
import hashlib
import os
import sys
import time

from . import metadata, options, plan, tensor_data, writer
from .errors import OctetError
from .imatrix import Importance
from .reader import Model
from .rounding import Rounding
from .smoothing import EXACT, Smoothing
from .stopping import stoppable

_HASHED_BYTES = 8 << 20  # at once
_FILE_TYPE_Q8_0 = 7  # of general.file_type


def planned(input, **wished) -> list[plan.Step]:
    """What `convert` with these options would make of each tensor of `input`."""
    named = ("int8", "rotate", "scale_group", "experts", "rotate_experts", "keep")
    with Model(input) as model:
        return plan.build(model, options.wishes_of(**{name: wished[name] for name in named}))


def check_target(input, output, force: bool) -> None:
    """Raise what `convert` would raise about its two files."""
    with Model(input) as model:
        writer.check_target(os.fspath(output), force, [s.path for s in model.shards])
        _refuse_converted(model, input)


def _refuse_converted(model: Model, input) -> None:
    if metadata.read(model) is not None:
        raise OctetError(f"{input}: is already converted: give the model it was made from")


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
    wishes = options.wishes_of(int8, rotate, scale_group, experts, rotate_experts, keep)
    seed = options.seed_of(seed)
    options.check_rounding(rounding, imatrix, experts is not None or smoothing is not None)
    smoothing = smoothing or Smoothing()
    threads = threads or len(os.sched_getaffinity(0))

    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(input))
        target = writer.check_target(os.fspath(output), force, [s.path for s in model.shards])
        _refuse_converted(model, input)
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
        tensor_data.write(file, steps, rounder, threads, bar.update)
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
    for start in range(0, shard.bytes, _HASHED_BYTES):
        digest.update(shard.read(start, min(_HASHED_BYTES, shard.bytes - start)))
    return digest.hexdigest()


@contextlib.contextmanager
def _bar(progress: bool, total: int):
    from tqdm import tqdm

    with tqdm(
        *(None, "converting", total),
        leave=False,
        unit="B",
        unit_scale=True,
        disable=not progress,
        file=sys.stderr,
    ) as bar:
        yield bar

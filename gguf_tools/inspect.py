"""What a GGUF file holds: tensors, their types, and how those of a converted file are stored."""

import argparse

from . import metadata
from .errors import shown
from .reader import Model

EXAMPLE = "octet inspect model-int8.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `octet inspect` to a parser."""
    parser.description = "List a GGUF model's tensors: type, shape, rotation, scale group, path."
    parser.epilog = f"example: {EXAMPLE}"
    parser.add_argument("model", metavar="MODEL", help="a GGUF file; of a split one, the first")


def run(args: argparse.Namespace, path_of=None) -> dict:
    """Do what parsed arguments ask; returns the result of `inspect`."""
    return inspect(args.model, path_of)


def inspect(path, path_of=None) -> dict:
    """Facts about a model.

    `path_of(name, type, shape)` → {"path", "reason"} tells which code will run a tensor; `type` is
    ggml's name, also of an octet tensor. Returns file, architecture (of the model, also
    behind the guard), converted (None, or version, seed, smoothing, source_sha256 and tool), bytes,
    and tensors: a list of {name, type, shape, bytes, rotation, scale_group[, path, reason]} with
    the input dimension first in `shape`, and rotation and scale_group None where not octet's.
    """
    with Model(path) as model:
        octet = metadata.read(model)
        tensors = [_facts(tensor, octet, path_of) for tensor in model.tensors.values()]
        return {
            "file": str(path),
            "architecture": octet.base_architecture if octet else model.get("general.architecture"),
            "converted": octet
            and {
                "version": metadata.VERSION,
                "guard": octet.rotated,
                "seed": octet.seed,
                "smoothing": octet.smoothing,
                "source_sha256": octet.source_sha256,
                "tool": octet.tool,
            },
            "bytes": model.file_bytes,
            "tensors": tensors,
        }


def _facts(tensor, octet, path_of) -> dict:
    rotation, group = (octet and octet.tensors.get(tensor.name)) or (None, None)
    kind = "int8" if group in (0, 128) else tensor.type.name
    facts = {
        "name": tensor.name,
        "type": kind,
        "shape": list(tensor.shape),
        "bytes": tensor.size,
        "rotation": rotation,
        "scale_group": group,
    }
    if path_of:
        where = path_of(tensor.name, tensor.type.name, tensor.shape)
        facts |= {"path": where["path"], "reason": where["reason"]}
    return facts


def render(result: dict) -> str:
    """The result of `inspect` as a table."""
    octet = result["converted"]
    how = f"converted by {shown(octet['tool'])}, seed {octet['seed']}" if octet else "not converted"
    rows = [("tensor", "type", "shape", "rotation", "scale", "path")]
    for t in result["tensors"]:
        scale = {None: "", 0: "row"}.get(t["scale_group"], t["scale_group"])
        path = f"{t['path']}: {t['reason']}" if "path" in t else ""
        rotation = "" if t["rotation"] is None else t["rotation"]
        shape = "×".join(map(str, t["shape"]))
        rows.append((shown(t["name"]), t["type"], shape, str(rotation), str(scale), path))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [f"{result['file']}: {shown(result['architecture'])}, {how}"]
    lines += ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join(lines)

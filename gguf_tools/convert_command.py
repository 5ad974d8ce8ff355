"""The arguments of `octet convert` and what it prints; the work is in convert.py."""

import argparse
import sys

from . import metadata, plan
from .convert import convert
from .errors import shown

EXAMPLE = "octet convert model-f16.gguf model-int8.gguf --experts iq3_s:iq4_nl"


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

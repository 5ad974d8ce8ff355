"""The command: python -m offline table|model (with sycl/ on the path)."""

import argparse
import fnmatch
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import Missing, OfflineError, model, table
from .build import DEVICES, build_all
from .execute import Kernel
from .ocloc import ocloc
from .variants import all_variants, with_128_registers


def _table(args: argparse.Namespace) -> int:
    variants = [v for v in all_variants() if fnmatch.fnmatch(v.name, args.only)]
    if args.registers == 128:
        variants = [with_128_registers(v) for v in variants]
    if not variants:
        raise OfflineError(f"no variant is called {args.only}")
    began = time.monotonic()
    built = build_all(variants, args.jobs)
    bad = 0
    print(table.HEAD)
    for b in built:
        for device in DEVICES:
            faults = table.faults(b, device)
            bad += bool(faults)
            print(table.line(b, device) + "".join(f"\n    FAULT: {f}" for f in faults))
    if args.json:
        Path(args.json).write_text(json.dumps(table.as_data(built), indent=1) + "\n")
    versions = ", ".join(
        f"{k} {v}" for k, v in ocloc().versions.items() if k in ("intel-ocloc", "libigc2")
    )
    if args.programs:
        with ThreadPoolExecutor(args.jobs or os.cpu_count()) as pool:
            list(pool.map(Kernel, built))
    count = len(built) * len(DEVICES)
    print(f"{count} binaries, {bad} with faults, {time.monotonic() - began:.0f} s ({versions})")
    return 1 if bad else 0


def _model(args: argparse.Namespace) -> int:
    if args.json:
        Path(args.json).write_text(json.dumps(model.prediction(), indent=1) + "\n")
    print(model.markdown())
    return 0


def main() -> int:
    """Exit code: 0 done, 1 faults, 2 wrong usage, 3 a tool is missing."""
    parser = argparse.ArgumentParser(prog="python -m offline", description=__doc__)
    commands = parser.add_subparsers(required=True)
    sub = commands.add_parser("table", help="compile all variants and check their machine code")
    sub.add_argument("--only", default="*", help="variants by pattern, e.g. 'product-iq3_s-*'")
    sub.add_argument("--json", help="write all figures to this file")
    sub.add_argument("--registers", type=int, choices=(256, 128), default=256, help="of a thread")
    sub.add_argument("--programs", action="store_true", help="also make them runnable here")
    sub.add_argument("--jobs", type=int, help="compilers at a time (number of cores)")
    sub.set_defaults(run=_table)
    sub = commands.add_parser("model", help="what bounds each kernel on the cards, as Markdown")
    sub.add_argument("--json", help="write what --gpu-report compares with to this file")
    sub.set_defaults(run=_model)
    args = parser.parse_args()
    try:
        return args.run(args)
    except OfflineError as error:
        print(f"offline: {error}", file=sys.stderr)
        return 3 if isinstance(error, Missing) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What `auto` follows: timings of our kernels against stock's, once per machine and kind of layer.

The backend says which kinds of layers of a model depend on it and keeps the results in the cache
folder (plugin/backend/auto.h); here they are taken, in a child process: whatever stock does with
weights that nobody has run yet, the user's process goes on.
"""

import json
import os
import signal
import subprocess
import sys
import time

from .errors import OctetError, one_line
from .header import Header

SECONDS = 1.5  # for all layers of a load together, unless they are so many ...
LEAST = 0.3  # ... that each would get less than this
LEAST_SAMPLES = 3  # fewer show no trend (plugin/crossover/curve.h)
GRACE = 20  # seconds after which a child that should have been done is given up


def prepare(library, found: Header, threads: int) -> None:
    """Time what the announced model depends on and nobody has timed. Never fails.

    `threads`: as announced, 0 for all.
    """
    labels = []
    for tensor in found.tensors:
        decision = library.decide(tensor.name, tensor.type, tensor.shape)
        label = decision["label"]
        if label and not decision["measured"] and label not in labels:
            labels.append(label)
    if labels:
        layout = library.layout()["layout"]
        folder = library.crossovers()["folder"]
        _say(
            f"timing ours against stock, once for this machine: {', '.join(labels)} "
            f"(kept in {folder}; off: OCTET_MOE, OCTET_W8A8, OCTET_DENSE = 0 or 1)"
        )
        measure(library, labels, threads, layout)


def measure(library, labels: list[str], threads: int, layout: str) -> dict[str, str]:
    """Time these layers and keep the results. Why it failed, for those for which it did."""
    results, why = _ask_child(
        labels, threads or len(os.sched_getaffinity(0)), library.status()["isa"], layout
    )
    failed, short, unwritten = {}, [], ""
    for label in labels:
        result = results.get(label, {"error": why})
        try:
            if "error" in result:
                raise OctetError(result["error"])
            unwritten = library.keep_crossover(label, result["samples"], layout) or unwritten
            if len(result["samples"]) < LEAST_SAMPLES:
                short.append(label)
        except (OctetError, KeyError, TypeError, ValueError) as wrong:
            failed[label] = one_line(wrong)
    if failed:
        reasons = "; ".join(dict.fromkeys(failed.values()))
        _say(f"timing {', '.join(failed)} failed ({reasons}): auto takes its default there")
    if short:
        _say(
            f"the time was not enough for {', '.join(short)}: auto takes its default there "
            "(octet doctor --remeasure times again)"
        )
    if unwritten:
        _say(f"the timings hold for this process only: {unwritten}")
    return failed


def remeasure(library) -> dict[str, str]:
    """Time again every layer whose result holds for this process. What failed, and why."""
    failed = {}
    entries = [e for e in library.crossovers()["entries"] if e["current"]]
    for threads, layout in sorted({(int(e["threads"]), e["layout"]) for e in entries}):
        same = [e for e in entries if (int(e["threads"]), e["layout"]) == (threads, layout)]
        labels = [e["label"] for e in same]
        _say(f"timing with {threads} threads, {layout}: {', '.join(labels)}")
        library.model_begin("octet doctor", Header(None, False, None), threads)
        try:
            failed |= measure(library, labels, threads, layout)
        finally:
            library.model_end()
    return failed


def _ask_child(labels: list[str], threads: int, isa: str, layout: str) -> tuple[dict, str]:
    """{label: {"samples"} or {"error"}}, and why labels are missing from it."""
    seconds = max(SECONDS, LEAST * len(labels))
    request = {
        "labels": labels,
        "threads": threads,
        "deadline": time.monotonic() + seconds,  # its start counts too
    }
    # Our path, in case the program changed it; no other switches than those that belong to the key.
    code = (
        f"import sys; sys.path[:] = {[p for p in sys.path if isinstance(p, str)]!r}; "
        f"from {__package__}.crossover_child import main; sys.exit(main(sys.argv[1]))"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCTET_")}
    env |= {f"OCTET_{name}": "1" for name in ("W8A8", "MOE", "DENSE")}
    env["OCTET_ISA"] = isa
    env["OCTET_LAYOUT"] = layout
    env["OCTET_CACHE_DIR"] = os.environ.get("OCTET_CACHE_DIR", "")
    try:
        child = subprocess.run(
            [sys.executable, "-c", code, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + GRACE,
            env=env,
            check=False,
        )
        said, why = child.stdout, _reason(child)
    except subprocess.TimeoutExpired as late:
        said, why = late.stdout or "", f"it took more than {seconds + GRACE:.0f} s"
    except (OSError, TypeError, ValueError) as wrong:  # TypeError: a program without sys.executable
        return {}, f"it could not be started: {one_line(wrong)}"
    if isinstance(said, bytes):  # of a child that was given up
        said = said.decode("utf-8", "replace")
    results = {}
    for line in said.splitlines():
        # A line per layer as it is done: what a crash comes too late for is kept.
        try:
            result = json.loads(line)
            results[result["label"]] = result
        except (ValueError, KeyError, TypeError):
            why = f"its answer was {line[:80]!r}"
    return results, why


def _reason(child) -> str:
    if child.returncode < 0:
        try:
            return f"it died of {signal.Signals(-child.returncode).name}"
        except ValueError:
            return f"it died of signal {-child.returncode}"
    last = child.stderr.strip().splitlines()[-1:] if child.returncode else []
    return last[0][-200:] if last else f"it ended with {child.returncode}"


def _say(text: str) -> None:
    print(f"octet: {text}", file=sys.stderr, flush=True)

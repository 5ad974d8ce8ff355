"""A whole model, ours and stock: processes of their own that take turns."""

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable

from .. import header
from ..errors import OctetError, UsageError

PROMPT, GENERATED = 512, 64


def run(path: str, against: str, threads: int, rounds: int, say: Callable[[str], None]) -> dict:
    """Medians of tokens per second over the rounds; both files must be readable."""
    lengths = [header.read(file).context_length or PROMPT + GENERATED for file in (path, against)]
    prompt = min(PROMPT, min(lengths) - GENERATED - 8)
    if prompt < 16:
        raise UsageError(f"{path}: its context of {min(lengths)} tokens is too short to time")
    kept: dict[str, list[dict]] = {"ours": [], "stock": []}
    for i in range(rounds):
        for side, file in (("ours", path), ("stock", against)):
            say(f"round {i + 1} of {rounds}, {side}")
            kept[side].append(_child(file, side, threads, prompt))
            if side == "ours":
                _check(kept[side][-1]["status"], path)
    say("")
    sides = {
        side: {
            "prompt_tps": prompt / statistics.median(r["prompt_s"] for r in results),
            "gen_tps": GENERATED / statistics.median(r["gen_s"] for r in results),
        }
        for side, results in kept.items()
    }
    status = kept["ours"][0]["status"]
    return {
        "model": path,
        "against": against,
        "isa": status["isa"],
        "threads": threads,
        "prompt_tokens": prompt,
        "gen_tokens": GENERATED,
        "rounds": rounds,
        **sides,
        "ratio": {
            key: sides["ours"][f"{key}_tps"] / sides["stock"][f"{key}_tps"]
            for key in ("prompt", "gen")
        },
        "kernels": status["kernels"],
    }


def _check(status: dict, path: str) -> None:
    if not any(of["calls"] for of in status.get("kernels", {}).values()):
        raise OctetError(
            f"{path}: none of its weights ran in octet's kernels, so there is nothing to compare "
            f"(octet inspect {path} says why)"
        )


def _child(path: str, side: str, threads: int, prompt: int) -> dict:
    child = subprocess.run(
        [
            *(sys.executable, "-m", f"{__package__}.child", path, side),
            *map(str, (threads, prompt, GENERATED)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise OctetError(f"{path}: {side} died of {name}")
    if child.returncode:
        last = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise OctetError(last[0].removeprefix("octet: "))
    return json.loads(child.stdout)

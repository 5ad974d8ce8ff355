"""What `octet doctor --gpu-report` runs on a card: parity, int8 against fp16, kernel variants.

The result is a file for whoever works on the kernels and has no such card.
"""

import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from . import __version__, gpu
from .bench import weights as synthetic
from .errors import OctetError
from .gpu_layers import Device, Place, devices

PAIRS = (
    *((g, d) for g in ("iq3_s", "iq3_xxs", "iq2_s") for d in ("iq4_nl", "q2_0")),
    ("int8", "int8"),
)
MEAN_ROWS = (16, 32, 64, 128, 256)
TOKENS = (1, 8, 64, 512)
REPEATS = 5


def make(path: Path, quick: bool = False) -> dict:
    """Run everything on every device and write the file; the report. OctetError if there is none.

    quick: small layers, for tests.
    """
    found, why = gpu.find()
    if found is None:
        raise OctetError(f"there is no GPU to report on: {why or 'no Intel GPU is seen'}")
    cpu = os.environ.get("OCTET_SYCL_DEVICE") == "cpu"
    if path.exists():
        raise OctetError(f"{path} exists: name another file")
    all_devices = devices(found, cpu)
    if not cpu and not any(info["dpas"] for info in all_devices):
        raise OctetError(
            "SYCL finds no GPU with int8 DPAS: install the driver (level zero) and libze1"
        )
    report = {
        "llama_octet": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "sycl": _sycl_version(gpu.prefix()),
        "switches": {k: v for k, v in sorted(os.environ.items()) if k.startswith("OCTET_")},
        "devices": [
            {**info, **_device(found, cpu, index, quick)}
            for index, info in enumerate(all_devices)
            if info["dpas"] or (cpu and index == 0)
        ],
    }
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)
    return report


def _device(found, cpu, index, quick) -> dict:
    started = time.perf_counter()
    out = {"failed": []}
    for name, function in (("parity", _parity), ("crossover", _crossover), ("bench", _bench)):
        print(f"octet: device {index}: {name}", file=sys.stderr, flush=True)
        try:
            out[name] = function(lambda **o: Device(found, cpu, index, **o), quick)
        except OctetError as why:
            out["failed"].append(f"{name}: {why}")
    out["seconds"] = round(time.perf_counter() - started, 1)
    return out


def _layer(places, gate_up, down, embd, ff, experts):
    """The same random layer in several places."""
    rng = np.random.default_rng(1)
    shapes = ((gate_up, ff, embd), (gate_up, ff, embd), (down, embd, ff))
    blocks = []
    for name, rows, columns in shapes:
        kind = synthetic.kind_of(name, "--gpu-report")
        _, ours = synthetic.make(kind, experts * rows, columns, rng)
        blocks.append(np.asarray(ours).reshape(experts, rows, -1))
    made = []
    for place in places:
        weights = []
        for (name, _, columns), b in zip(shapes, blocks, strict=True):
            options = {}
            if name == synthetic.INT8:
                block = synthetic.rotation.block_for(columns, 128)
                options = {"scale_group": 0, "rotation": block, "seed": synthetic.SEED}
            weights.append(place.weight("q8_0" if options else name, b, columns, **options))
        made.append(weights)
    return made


def _input(tokens, used, embd, experts, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, embd)).astype(np.float32)
    # Uneven: the first experts are four times as likely as the last.
    share = np.linspace(1, 0.25, experts)
    ids = np.array([rng.choice(experts, used, False, share / share.sum()) for _ in range(tokens)])
    return x, ids, rng.random((tokens, used)).astype(np.float32)


def _parity(open_device, quick) -> list[dict]:
    """Bits that differ from the CPU engine (none should), and how far fp16 is away."""
    device, cpu, rows = open_device(), Place(), []
    experts, embd, ff = 20, 512, 256
    for gate_up, down in PAIRS[:1] if quick else PAIRS:
        there, here = _layer((device, cpu), gate_up, down, embd, ff, experts)
        for tokens in (1, 7) if quick else (1, 7, 70, 130):
            data = _input(tokens, 4, embd, experts)
            expected = cpu.chain(*here, "swiglu", *data)
            got = device.chain(*there, "swiglu", *data)
            half = device.chain(*there, "swiglu", *data, half=True)
            size = float(np.abs(expected).max())
            rows.append(
                {
                    "pair": f"{gate_up}:{down}",
                    "tokens": tokens,
                    "different": int((got.view(np.int32) != expected.view(np.int32)).sum()),
                    "values": expected.size,
                    "int8_error": float(np.abs(got - expected).max()) / size,
                    "half_error": float(np.abs(half - expected).max()) / size,
                }
            )
    return rows


def _median_ms(device, weights, data, half=False, repeats=REPEATS) -> float:
    device.chain(*weights, "swiglu", *data, half=half)  # compiles and allocates
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        device.chain(*weights, "swiglu", *data, half=half)
        times.append(1e3 * (time.perf_counter() - start))
    return round(float(np.median(times)), 4)


def _crossover(open_device, quick) -> list[dict]:
    """int8 and fp16 by mean rows per expert; one expert a token, so rows are tokens."""
    device, rows = open_device(), []
    experts, (embd, ff) = 16, (512, 256) if quick else (2560, 640)
    for gate_up, down in PAIRS[:1] if quick else PAIRS:
        ((*weights,),) = _layer((device,), gate_up, down, embd, ff, experts)
        for mean in MEAN_ROWS[:1] if quick else MEAN_ROWS:
            data = _input(mean * experts, 1, embd, experts)
            repeats = 1 if quick else REPEATS
            times = [_median_ms(device, weights, data, half, repeats) for half in (False, True)]
            rows.append(
                {
                    "pair": f"{gate_up}:{down}",
                    "rows": mean,
                    "int8_ms": times[0],
                    "half_ms": times[1],
                }
            )
    return rows


def _bench(open_device, quick) -> list[dict]:
    """One layer, 64 experts, 8 used, with every variant of the kernels."""
    rows = []
    experts, used, (embd, ff) = (16, 4, (512, 256)) if quick else (64, 8, (2560, 640))
    variants = [(0, True, 256)]
    if not quick:
        variants += [(m, w, 256) for m in (2, 4, 8) for w in (True, False)]
        variants += [(m, True, 128) for m in (2, 4)]
    for gate_up, down in PAIRS[:1] if quick else (PAIRS[0], PAIRS[3], PAIRS[4], PAIRS[6]):
        for tiles, groups, registers in variants:
            device = open_device(tiles=tiles, work_groups=groups, registers=registers)
            ((*weights,),) = _layer((device,), gate_up, down, embd, ff, experts)
            for tokens in TOKENS[:1] if quick else TOKENS:
                data = _input(tokens, used, embd, experts)
                active = len(np.unique(data[1]))
                ms = _median_ms(device, weights, data, repeats=1 if quick else REPEATS)
                rows.append(
                    {
                        "pair": f"{gate_up}:{down}",
                        "tiles": tiles,
                        "work_groups": groups,
                        "registers": registers,
                        "tokens": tokens,
                        "ms": ms,
                        "us_per_expert": round(1e3 * ms / active, 2),
                    }
                )
            del weights
            device.close()
    return rows


def _sycl_version(where: Path | None) -> str:
    return (where / "lib/libsycl.so").resolve().name if where else ""


def clean(report: dict) -> bool:
    """Whether everything ran and every value of the int8 chain was the CPU's."""
    return not any(
        device["failed"] or any(row["different"] for row in device.get("parity", []))
        for device in report["devices"]
    )


def summary(report: dict, path: Path) -> str:
    """A few lines for reading."""
    lines = []
    for device in report["devices"]:
        parity = device.get("parity", [])
        wrong = sum(row["different"] for row in parity)
        best = min(
            (row["us_per_expert"] for row in device.get("bench", []) if row["tokens"] == 512),
            default=None,
        )
        lines.append(f"{device['name']} ({device['architecture']}, driver {device['driver']})")
        lines.append(
            f"  parity: {len(parity)} layers, {wrong} values differ from the CPU"
            + ("" if best is None else f"; at 512 tokens {best} us an expert")
        )
        lines += [f"  failed: {text}" for text in device["failed"]]
    lines.append(f"written to {path}: please send it back")
    return "\n".join(lines)

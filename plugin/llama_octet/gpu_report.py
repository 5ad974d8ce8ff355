"""What `octet doctor --gpu-report` runs on a card: parity, int8 against fp16, kernel variants.

The result is a file for whoever works on the kernels and has no such card.
"""

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from . import __version__, gpu
from .bench import weights as synthetic
from .errors import OctetError, one_line
from .gpu_layers import Device, Place, devices

PAIRS = (
    *((g, d) for g in ("iq3_s", "iq3_xxs", "iq2_s") for d in ("iq4_nl", "q2_0")),
    ("int8", "int8"),
)
# Of which one weight has no int8 products.
FLOAT_PAIRS = (("iq2_xs", "q2_0"), ("iq2_xxs", "q4_0"), ("iq4_xs", "q2_0"), ("mxfp4", "mxfp4"))
# Tiles of a thread, work-groups, registers.
VARIANTS = (
    *((m, w, 256) for m in (2, 4, 8) for w in (True, False)),
    *((m, True, 128) for m in (2, 4)),
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
    used = [i for i, info in enumerate(all_devices) if info["dpas"] or (cpu and i == 0)]
    report = {
        "llama_octet": __version__,
        "kernels": _kernels(found.sources),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        **_system(),
        "switches": {k: v for k, v in sorted(os.environ.items()) if k.startswith("OCTET_")},
        "devices": [{**all_devices[i], "failed": []} for i in used],
        "other_devices": [info for i, info in enumerate(all_devices) if i not in used],
    }
    # A card that hangs ends in a killed process: what was found until then stays there.
    beside = path.with_name(f"{path.name}.part")

    def keep():
        beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    for index, out in zip(used, report["devices"], strict=True):
        _device(out, lambda index=index, **o: Device(found, cpu, index, **o), quick, keep)
    keep()
    os.replace(beside, path)
    return report


def _device(out: dict, open_device, quick: bool, keep) -> None:
    """Fill in the sections of a device's report; keep() is called after each step of them."""
    started = time.perf_counter()
    for name, section in (("parity", _parity), ("crossover", _crossover), ("bench", _bench)):
        out[name] = rows = []
        for pair in _pairs(name, quick):
            print(f"octet: {out['name']}: {name} {pair}", file=sys.stderr, flush=True)
            try:
                for row in section(open_device, pair, out["architecture"], quick):
                    rows.append({"pair": pair, **row})
            except (OctetError, MemoryError) as why:
                out["failed"].append(f"{name} {pair}: {one_line(why)}")
            out["seconds"] = round(time.perf_counter() - started, 1)
            keep()


def _pairs(section: str, quick: bool) -> list[str]:
    names = [f"{g}:{d}" for g, d in PAIRS]
    floats = [f"{g}:{d}" for g, d in FLOAT_PAIRS]
    if section == "parity":
        return names[:1] + floats[:1] if quick else names + floats
    if quick:
        return names[:1]
    return names if section == "crossover" else [names[i] for i in (0, 3, 4, 6)]


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


def _parity(open_device, pair, architecture, quick):
    """Bits that differ from the CPU engine (none should), and how far fp16 is away.

    By the number of tokens, then with every variant of the kernels. Formats without int8 products
    have fp16 alone.
    """
    gate_up, down = pair.split(":")
    cpu, experts, embd, ff = Place(), 20, 512, 256
    has_int8 = (gate_up, down) not in FLOAT_PAIRS
    cases = [(0, True, 256, tokens) for tokens in ((1, 7) if quick else (1, 7, 70, 130))]
    if has_int8 and not quick:
        cases += [(m, w, r, 70) for m, w, r in VARIANTS]
    for tiles, groups, registers, tokens in cases:
        device = open_device(tiles=tiles, work_groups=groups, registers=registers)
        there, here = _layer((device, cpu), gate_up, down, embd, ff, experts)
        data = _input(tokens, 4, embd, experts)
        expected = cpu.chain(*here, "swiglu", *data)
        size = float(np.abs(expected).max())
        row = {"tiles": tiles, "work_groups": groups, "registers": registers, "tokens": tokens}
        if has_int8:
            got = device.chain(*there, "swiglu", *data)
            row["different"] = int((got.view(np.int32) != expected.view(np.int32)).sum())
            row["values"] = expected.size
            row["int8_error"] = float(np.abs(got - expected).max()) / size
        if tiles == 0:
            half = device.chain(*there, "swiglu", *data, half=True)
            row["half_error"] = float(np.abs(half - expected).max()) / size
        yield row
        del there
        device.close()


def _median_ms(device, weights, data, half=False, repeats=REPEATS) -> float:
    device.chain(*weights, "swiglu", *data, half=half)  # compiles and allocates
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        device.chain(*weights, "swiglu", *data, half=half)
        times.append(1e3 * (time.perf_counter() - start))
    return round(float(np.median(times)), 4)


def _predicted(architecture: str, pair: str, rows: float) -> dict:
    """What the model of docs/battlemage.md expects, in microseconds an expert: int8 and fp16."""
    curve = np.array(_model()["us_per_expert"].get(architecture, {}).get(pair, []))
    if not len(curve) or not curve[0, 0] <= rows <= curve[-1, 0]:
        return {}
    return {
        f"{side}_model_us": round(float(np.interp(rows, curve[:, 0], curve[:, i])), 1)
        for i, side in ((1, "int8"), (2, "half"))
    }


@cache
def _model() -> dict:
    return json.loads(Path(__file__).with_name("gpu_model.json").read_text())


def _crossover(open_device, pair, architecture, quick):
    """int8 and fp16 by mean rows per expert; one expert a token, so rows are tokens."""
    device = open_device()
    experts, (embd, ff) = 16, (512, 256) if quick else _model()["shape"]
    ((*weights,),) = _layer((device,), *pair.split(":"), embd, ff, experts)
    for mean in MEAN_ROWS[:1] if quick else MEAN_ROWS:
        data = _input(mean * experts, 1, embd, experts)
        repeats = 1 if quick else REPEATS
        times = [_median_ms(device, weights, data, half, repeats) for half in (False, True)]
        yield {
            "rows": mean,
            "int8_ms": times[0],
            "half_ms": times[1],
            "int8_us_per_expert": round(1e3 * times[0] / experts, 2),
            "half_us_per_expert": round(1e3 * times[1] / experts, 2),
            **_predicted(architecture, pair, mean),
        }
    del weights
    device.close()


def _bench(open_device, pair, architecture, quick):
    """One layer, 64 experts, 8 used, with every variant of the kernels."""
    experts, used, (embd, ff) = (16, 4, (512, 256)) if quick else (64, 8, _model()["shape"])
    for tiles, groups, registers in [(0, True, 256), *(() if quick else VARIANTS)]:
        device = open_device(tiles=tiles, work_groups=groups, registers=registers)
        ((*weights,),) = _layer((device,), *pair.split(":"), embd, ff, experts)
        for tokens in TOKENS[:1] if quick else TOKENS:
            data = _input(tokens, used, embd, experts)
            active = len(np.unique(data[1]))
            ms = _median_ms(device, weights, data, repeats=1 if quick else REPEATS)
            yield {
                "tiles": tiles,
                "work_groups": groups,
                "registers": registers,
                "tokens": tokens,
                "rows": round(tokens * used / active, 1),
                "ms": ms,
                "us_per_expert": round(1e3 * ms / active, 2),
                **_predicted(architecture, pair, tokens * used / active),
            }
        del weights
        device.close()


def _kernels(sources: Path) -> str:
    """A hash of the device code."""
    total = hashlib.sha256()
    for file in sorted(sources.rglob("*")):
        if file.suffix in (".h", ".cpp"):
            total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def _system() -> dict:
    """What else the results depend on: the machine, and everything between us and the card."""
    where = gpu.prefix()
    packages = {}
    for name in ("llama-cpp-python", "numpy", "intel-sycl-rt", "intel-cmplr-lib-ur"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    # The names of the driver's libraries hold their versions.
    drivers = {
        p.resolve().name
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
        for pattern in ("libze_loader.so.1", "libze_intel_gpu.so.1", "libigc.so.*", "libigdgmm.so*")
        for p in Path(folder).glob(pattern)
    }
    compiler = ""
    with contextlib.suppress(OSError):
        said = subprocess.run([*gpu.compiler(), "--version"], capture_output=True, text=True)
        compiler = said.stdout.partition("\n")[0]
    return {
        "system": platform.platform(),
        "cpu": _cpu(),
        "threads": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": packages,
        "sycl": (where / "lib/libsycl.so").resolve().name if where else "",
        "drivers": sorted(drivers),
        "compiler": compiler,
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def clean(report: dict) -> bool:
    """Whether everything ran and every value of the int8 chain was the CPU's."""
    return not any(
        device["failed"] or any(row.get("different") for row in device.get("parity", []))
        for device in report["devices"]
    )


def summary(report: dict, path: Path) -> str:
    """A few lines for reading."""
    lines = []
    for device in report["devices"]:
        parity = [row for row in device["parity"] if "different" in row]
        wrong = sum(row["different"] for row in parity)
        lines.append(f"{device['name']} ({device['architecture']}, driver {device['driver']})")
        lines.append(f"  parity: {len(parity)} layers, {wrong} values differ from the CPU")
        for row in device["crossover"]:
            if row["rows"] == (64 if len(device["crossover"]) > 1 else row["rows"]):
                model = f" (model: {row['int8_model_us']}" if "int8_model_us" in row else ""
                model += f" and {row['half_model_us']})" if model else ""
                lines.append(
                    f"  {row['pair']}, {row['rows']} rows: {row['int8_us_per_expert']} us an "
                    f"expert in int8, {row['half_us_per_expert']} in fp16{model}"
                )
        lines += [f"  failed: {text}" for text in device["failed"]]
    lines.append(f"written to {path}: please send it back")
    return "\n".join(lines)

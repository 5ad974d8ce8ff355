"""What compiles and runs device code without a device: it has to notice what it is for."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from device import Buffer, Layout, codebook, matrix
from llama_octet import gpu_report
from offline import OfflineError, assembly, model, table
from offline.build import DEVICES, Built, build
from offline.execute import Kernel
from offline.translate import translate
from offline.variants import all_variants, product, rows


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("variant", all_variants(), ids=lambda v: v.name)
def test_machine_code_is_as_intended(variant):
    built = build(variant)
    for device in DEVICES:
        assert table.faults(built, device) == []


class Changed(Built):
    """A variant whose files say something else."""

    def __init__(self, built: Built, *changes: tuple[str, str]):
        super().__init__(built.variant, built.folder)
        object.__setattr__(self, "changes", changes)

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def _change(self, text: str) -> str:
        for old, new in self.changes:
            text = text.replace(old, new)
        return text

    def ir(self) -> str:
        return self._change(super().ir())

    def assembly(self, device: str) -> str:
        return self._change(super().assembly(device))

    def info(self, device: str) -> str:
        return self._change(super().info(device))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("grf_count:       256", "grf_count:       256\n      spill_size: 64"), "spills 64"),
        (("grf_count:       256", "grf_count:       128"), "128 registers"),
        (("dpas.8x8", "mov"), "0 dpas"),
        (("1073743040", "1073741824"), "denormals"),
        (("mad (16|M0)", "mul (16|M0)"), "0 fused lanes"),
        (("slm_size:", "other_size:"), "0 bytes of local"),
        (("barrier_count:", "other_count:"), "0 barriers"),
    ],
)
def test_faults_of_machine_code_are_found(change, fault):
    built = build(product("iq3_s", 2, 1))
    changed = Changed(built, change)
    assert any(fault in f for f in table.faults(changed, DEVICES[0])), table.faults(
        changed, DEVICES[0]
    )


@pytest.mark.usefixtures("offline")
def test_an_unknown_builtin_is_an_error():
    text = build(rows("none", 32, 0)).ir()
    with pytest.raises(OfflineError, match=r"calls llvm\.genx\.wonder"):
        translate(text.replace("llvm.genx.rdregion", "llvm.genx.wonder"))


def launch(built, blob, k=256, n=32, wg=1):
    """One expert with two tiles of ones."""
    tiles = Buffer(np.ones((2, k // 32, 8, 32), np.int8))
    scales = Buffer(np.ones((2, k // 32, 8), np.float32))
    out = Buffer(np.zeros((16, n), np.float32))
    jobs = Layout([16]).jobs([blob], 2)
    size = (1, 8) if wg else (1, n // 16)
    arguments = (Buffer(jobs), tiles, scales, codebook("iq3_s"), out, None, k, n, n)
    Kernel(built).launch(size, 8 if wg else 1, *arguments)
    return out.array


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("wg", [0, 1])
def test_a_read_outside_of_the_weights_is_caught(wg):
    built = build(product("iq3_s", 2, wg))
    m = matrix("iq3_s", 32, 256, np.random.default_rng(0))
    launch(built, m.blob, wg=wg)
    short = Buffer(
        m.blob.array.reshape(-1)[: -2 * 110]
    )  # a multiple of 4, so that it begins at one
    with pytest.raises(OfflineError, match="memory that is not the kernel's"):
        launch(built, short, wg=wg)
    for _ in range(2):
        m.blob.address += 1
        with pytest.raises(OfflineError, match="not aligned"):
            launch(built, m.blob, wg=wg)


@pytest.mark.usefixtures("offline")
def test_a_missing_barrier_is_noticed():
    built = build(product("iq3_s", 2, 1))
    m = matrix("iq3_s", 32, 256, np.random.default_rng(0))
    right = launch(built, m.blob).copy()
    without = Changed(
        built, ("call void @llvm.genx.barrier()", "call void @llvm.genx.fence(i8 33)")
    )
    assert not np.array_equal(launch(without, m.blob), right)


@pytest.mark.usefixtures("offline")
def test_what_a_report_compares_with_is_the_model():
    """`python -m offline model --json plugin/llama_octet/gpu_model.json` writes it."""
    kept = Path(gpu_report.__file__).with_name("gpu_model.json")
    assert json.loads(kept.read_text()) == model.prediction()


def test_predictions_lie_between_the_rows_of_the_model():
    at = {rows: gpu_report._predicted("bmg-g31", "iq3_s:iq4_nl", rows) for rows in (64, 96, 128)}
    for side in ("int8_model_us", "half_model_us"):
        assert at[64][side] < at[96][side] < at[128][side]
    assert gpu_report._predicted("bmg-g31", "iq3_s:iq4_nl", 300) == {}
    assert gpu_report._predicted("cpu", "iq3_s:iq4_nl", 64) == {}


def test_loops_are_read_by_what_is_in_them():
    text = """
L0:
        send.ugm (16|M0) r8 r4 null:0 0x0 0x0 {$2} // wr:2+0, rd:1; load.ugm.d16u32.a64
        add (16|M0) r1.0<1>:d r2.0<1;1,0>:d r3.0<1;1,0>:d
(W&~f0.0) jmpi L32
L32:
        dpas.8x8 (16|M0) r28:d null:d r16:b r24.0:b {$30}
        mad (32|M0) r1.0<1>:f r2.0<1;0>:f r3.0<1;0>:f r4.0<1>:f
(W&f0.0) jmpi L0
"""
    loop = assembly.report(text, "grf_count: 256", block_steps=8).loop
    assert loop.dpas == 1
    assert loop.instructions == 3 / 8 + 2
    assert loop.messages == {("load.ugm.d16u32.a64", 16): 1 / 8}
    assert dataclasses.astuple(loop)[2] == 3 / 8 + 2 + 1

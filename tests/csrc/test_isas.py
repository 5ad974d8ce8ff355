"""Which instruction sets are tested here, and which are not."""

import platform

import kernels
import pytest

X86 = ("avx2", "avxvnni", "avx512vnni", "amx")
ARM = ("neon", "i8mm")


def flags() -> set[str]:
    with open("/proc/cpuinfo") as file:
        lines = [line for line in file if line.startswith(("flags", "Features"))]
    return set(lines[0].split()) if lines else set()


@pytest.mark.parametrize("isa", kernels.ISAS)
def test_available(isa):
    """All that the processor has are there; kernels of the others cannot be tested."""
    here = kernels.available()
    assert set(here) <= set(kernels.ISAS)
    machine = platform.machine()
    if isa in (X86 if machine == "aarch64" else ARM if machine == "x86_64" else ()):
        assert isa not in here
        pytest.skip(f"{isa} is not for {machine}: none of its tests ran")
    needed = {
        "scalar": set(),
        "avx2": {"avx2", "fma", "f16c"},
        "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
        "avx512vnni": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
        "amx": {"avx512_vnni", "avx512vl", "amx_tile", "amx_int8"},
        "neon": {"asimddp"},
        "i8mm": {"asimddp", "i8mm"},
    }[isa]
    missing = sorted(needed - flags())
    if missing:
        assert isa not in here
        pytest.skip(f"{isa}: this machine lacks {', '.join(missing)}: none of its tests ran")
    assert isa in here

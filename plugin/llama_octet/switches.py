"""The environment switches: names and accepted values, for messages and for `octet doctor`.

The backend library reads and judges the switches itself; this table explains. A test holds the
two together.
"""

import os
import re

ON_OFF_AUTO = ("auto", "0", "1")
ON_OFF = ("0", "1")

# name: accepted words, or the description of what is accepted where it is not a short list.
BACKEND: dict[str, tuple[str, ...] | str] = {
    "OCTET_W8A8": ON_OFF_AUTO,
    "OCTET_MOE": ON_OFF_AUTO,
    "OCTET_DENSE": ON_OFF_AUTO,
    "OCTET_QUANTIZE": ON_OFF,
    "OCTET_ISA": ("auto", "scalar", "avx2", "avxvnni", "avx512vnni", "amx", "neon", "i8mm"),
    "OCTET_LAYOUT": ("auto", "packed", "native"),
    "OCTET_MIN_K": "a whole number",
    "OCTET_SKIP_ROWS": "a whole number",
    "OCTET_INCLUDE": "comma-separated name patterns",
    "OCTET_EXCLUDE": "comma-separated name patterns",
    "OCTET_VERBOSE": ON_OFF,
    "OCTET_SYCL": ON_OFF_AUTO,
    "OCTET_SYCL_FORCE": ("0",),
    "OCTET_SYCL_MT": ("auto", "2", "4", "8"),
    "OCTET_SYCL_WG": ON_OFF,
    "OCTET_SYCL_GRF": ("128", "256"),
    "OCTET_SYCL_DEVICE": ("cpu",),
    "OCTET_MODEL": "a path",
}

# Read by this package, not by the backend.
PACKAGE: dict[str, tuple[str, ...] | str] = {
    "OCTET_CACHE_DIR": "a path",
    "OCTET_DEBUG": ON_OFF,
}


def accepted(name: str) -> str:
    """The accepted values of a switch, for a sentence."""
    values = {**BACKEND, **PACKAGE}[name]
    return values if isinstance(values, str) else ", ".join(values)


def is_junk(name: str, value: str) -> bool:
    """Whether the value is one the switch does not take. Unset and empty are the default."""
    values = {**BACKEND, **PACKAGE}.get(name)
    if not value or values is None:
        return False
    if values == "a whole number":
        return re.fullmatch(r"[0-9]{1,18}", value) is None
    return not isinstance(values, str) and value not in values


def survey() -> list[dict]:
    """Every OCTET_ variable that is set: name, value, what is wrong with it (None: nothing)."""
    rows = []
    for name in sorted(os.environ):
        if not name.startswith("OCTET_") or name.startswith("OCTET_TEST_"):
            continue
        value = os.environ[name]
        wrong = None
        if name not in BACKEND and name not in PACKAGE:
            wrong = "no such switch"
        elif is_junk(name, value):
            wrong = f"not accepted; accepted: {accepted(name)}"
        rows.append({"name": name, "value": value, "wrong": wrong})
    return rows

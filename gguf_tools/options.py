"""What the options of `octet convert` mean, and which of them make no sense."""

import re

from . import plan, rotation
from .errors import UsageError
from .rounding import METHODS


def _patterns(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _choice(option: str, value, choices: dict):
    if str(value) not in choices:
        raise UsageError(f"{option} {value}: must be one of {', '.join(choices)}")
    return choices[str(value)]


def seed_of(value) -> int:
    """The number that --seed gives."""
    # Not int(): it takes ' 7', '1_0' and True
    if not re.fullmatch(r"[0-9]{1,5}", str(value)) or int(value) > 65535:
        raise UsageError(f"--seed {value}: must be a number from 0 to 65535")
    return int(value)


def _expert_types(text: str | None) -> tuple[str | None, str | None]:
    if text is None:
        return None, None
    names = text.lower().split(":")
    if len(names) != 2 or not all(name in plan.CODEBOOKS for name in names):
        raise UsageError(
            f"--experts {text}: must be GATE_UP:DOWN, each one of {', '.join(plan.CODEBOOKS)}"
        )
    return names[0], names[1]


def wishes_of(int8, rotate, scale_group, experts, rotate_experts, keep) -> plan.Wishes:
    """What the options of these names ask for."""
    gate_up, down = _expert_types(experts)
    int8_patterns = _patterns(int8)
    if not int8_patterns:
        raise UsageError("--int8 needs a name pattern, or none")
    group = _choice("--scale-group", scale_group, {"row": 0, "128": 128, "32": 32})
    # A block as long as a scale loses least (docs/fidelity.md).
    blocks = {**rotation.WISHES, "auto": 32 if group == 32 else rotation.WISHES["auto"]}
    return plan.Wishes(
        int8=[] if int8_patterns == ["none"] else int8_patterns,
        keep=_patterns(keep),
        rotate=_choice("--rotate", rotate, blocks),
        scale_group=group,
        gate_up=gate_up,
        down=down,
        rotate_experts=_choice("--rotate-experts", rotate_experts, rotation.WISHES),
    )


def check_rounding(method: str, imatrix, other_use: bool) -> None:
    """Refuse a --round without what it needs, and an --imatrix without any use."""
    if method not in METHODS:
        raise UsageError(f"--round {method}: must be one of {', '.join(METHODS)}")
    if method == "gptq" and imatrix is None:
        raise UsageError("--round gptq: needs an --imatrix made with octet calibrate --gram '*'")
    if method == "nearest" and imatrix is not None and not other_use:
        raise UsageError(
            "--imatrix: is only used for codebook experts and by --round gptq: give --experts or "
            "--round gptq too"
        )

"""Where a scaling of channels can be taken up without changing what a float model computes.

Two kinds. A norm's gain can be divided by s if the columns of every weight that reads the norm are
multiplied by it. And the rows of an up projection can be multiplied by s if the columns of the
down projection behind it are divided: the gate's activation is not linear, but in gate(x) · up(x)
the second factor passes a scale on.
"""

import re
from dataclasses import dataclass

from .reader import Model
from .shard import Tensor

# Architectures in which a block is: attn_norm, read by q, k, v and nothing else; ffn_norm, read by
# the FFN (router, experts, shared experts) and nothing else. Norms behind attention or FFN, and
# those of the heads of q and k, are other tensors and stay as they are. A file's gain is what the
# norm multiplies by, also for Gemma, whose files hold the one that the original adds.
NORM_ARCHITECTURES = frozenset(
    """
    bailingmoe deepseek dots1 ernie4_5 ernie4_5-moe exaone gemma gemma2 gemma3 glm4 granite
    hunyuan-dense hunyuan-moe hy_v3 internlm2 llama mistral3 olmoe phi3 qwen2 qwen2moe qwen2vl
    qwen3 qwen3moe qwen3vl qwen3vlmoe smollm3
    """.split()
)
_READERS = {
    "attn_norm": "attn_q attn_k attn_v attn_qkv",
    "ffn_norm": "ffn_gate ffn_up ffn_gate_inp ffn_gate_inp_shexp ffn_gate_exps ffn_up_exps "
    "ffn_gate_up_exps ffn_gate_shexp ffn_up_shexp",
}
# Their GLU clamps the up projection, so that it does not pass a scale on.
_CLAMPED = frozenset(["gpt-oss", "minimax-m3"])
_CLAMP_KEYS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")
_UP_DOWN = (
    # gate, up, down; where gate and up are one tensor, up is its second half.
    ("ffn_gate", "ffn_up", "ffn_down"),
    ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    (None, "ffn_gate_up_exps", "ffn_down_exps"),
    ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
    ("ffn_gate_chexps", "ffn_up_chexps", "ffn_down_chexps"),
)


@dataclass(frozen=True)
class NormFold:
    """A norm (its gain, and its bias if it has one) and all weights that read it."""

    norm: list[Tensor]
    readers: list[Tensor]


@dataclass(frozen=True)
class UpDownFold:
    """An up and a down projection, of one FFN or of all experts of a layer.

    `first`: the row of an expert of `up` from which on rows are up's (before them, the gate's).
    """

    up: Tensor
    down: Tensor
    first: int
    bias: Tensor | None


def _blocks(model: Model) -> list[str]:
    found = {m[0]: None for name in model.tensors if (m := re.match(r"blk\.\d+\.", name))}
    return list(found)


def norm_folds(model: Model, architecture: str) -> tuple[list[NormFold], str]:
    """The norms of a model that can be folded; if there are none, also why."""
    if architecture not in NORM_ARCHITECTURES:
        return [], f"what reads the norms of architecture {architecture} is not known"
    folds = []
    for block in _blocks(model):
        for norm, names in _READERS.items():
            gain = model.tensors.get(f"{block}{norm}.weight")
            readers = [model.tensors.get(f"{block}{name}.weight") for name in names.split()]
            readers = [r for r in readers if r is not None]
            if gain is None or not readers:
                continue
            if any(r.columns != gain.columns for r in readers):
                continue
            bias = model.tensors.get(f"{block}{norm}.bias")
            folds.append(NormFold([t for t in (gain, bias) if t is not None], readers))
    return folds, "" if folds else "it has no norms of the usual names"


def up_down_folds(model: Model, architecture: str) -> tuple[list[UpDownFold], str]:
    """The pairs of up and down of a model that pass a scale on; if there are none, also why."""
    clamps = [model.values.get(f"{architecture}.{key}") for key in _CLAMP_KEYS]
    if architecture in _CLAMPED or any(clamps):
        return [], f"the GLU of architecture {architecture} clamps the up projection"
    folds = []
    for block in _blocks(model):
        for names in _UP_DOWN:
            gate, up, down = (n and model.tensors.get(f"{block}{n}.weight") for n in names)
            if up is None or down is None:
                continue
            experts = up.shape[2] if len(up.shape) > 2 else 1
            per_expert = up.rows // experts
            merged = gate is None and per_expert == 2 * down.columns
            if not merged and (gate is None or per_expert != down.columns):
                continue
            bias = model.tensors.get(f"{block}{names[1]}.bias")
            folds.append(UpDownFold(up, down, per_expert - down.columns, bias))
    return folds, "" if folds else "it has no gated FFN"

"""Which tensor becomes what, and why: decided from names and shapes before anything is written.

An int8 product can stand in only where the runtime uses a weight as a plain matrix. So the tensors
that may change are listed, not the ones that may not: an unknown name keeps its type.

What a weight gets that cannot have what was wished for: int8 needs rows of a multiple of 32, others
keep their type. Scales per 128 columns need a multiple of 128, others get one per row. Codebook
types need a multiple of their block (256, q2_0 64, iq4_nl and q8_0 32); others get iq4_nl, and if
that does not fit either, keep their type.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from . import ggml, int8, rotation
from .errors import OctetError, UsageError, shown
from .reader import Model
from .shard import Tensor
from .smoothing import Smoothing

HEAD = "output.weight"
CODEBOOKS = ("iq3_s", "iq3_xxs", "iq2_s", "iq4_nl", "q2_0", "q8_0")
SMALL_BLOCKS = "iq4_nl"  # what rows get that do not fill the blocks of a wished codebook

# Weights of a block (blk.N., in encoder-decoder models enc.blk.N. and dec.blk.N.) that the runtime
# multiplies as they lie in the file, without a reshape or a view.
_DENSE = """
attn_q attn_k attn_v attn_qkv attn_output attn_gate attn_o
attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b attn_kv attn_output_b
cross_attn_q cross_attn_k cross_attn_v cross_attn_o
ffn_gate ffn_up ffn_down ffn_gate_shexp ffn_up_shexp ffn_down_shexp
ffn_latent_down ffn_latent_up ffn_routed_down ffn_routed_up
ssm_in ssm_out shortconv.in_proj shortconv.out_proj
time_mix_key time_mix_value time_mix_receptance time_mix_gate time_mix_output
channel_mix_key channel_mix_value channel_mix_receptance
vis_attn_qkv vis_attn_output vis_gate vis_up vis_down
inp_gate proj laurel_l laurel_r
""".split()
_GATE_UP = """
ffn_gate_exps ffn_up_exps ffn_gate_up_exps ffn_gate_chexps ffn_up_chexps
""".split()
_DOWN = ["ffn_down_exps", "ffn_down_chexps"]
_ROLES = {
    **dict.fromkeys(_DENSE, "dense"),
    **dict.fromkeys(_GATE_UP, "gate_up"),
    **dict.fromkeys(_DOWN, "down"),
}
_BLOCK_WEIGHT = re.compile(r"(?:(?:enc|dec)\.)?blk\.\d+\.(.+)\.weight")

# Why the others keep their type; the first that matches is told.
_REASONS = (
    (r".*\.bias", "a bias"),
    (r".*norm.*", "a norm"),
    (r".*\.(scale|input_scale)", "a scale"),
    (r".*(embd|token_types|embed_tokens).*", "an embedding, read by row"),
    (r".*(ffn_gate_inp|router).*", "a router, kept exact"),
    (r".*attn_[kv]_b\.weight", "multiplied head by head"),
    (r".*(conv|ssm_|time_mix_).*", "not a plain product in the runtime"),
    (r"output\.weight", "the output head, unless asked for"),
)


@dataclass
class Step:
    """One tensor and what it becomes. `to`: `int8`, a type's name, or the type it has (a copy)."""

    tensor: Tensor
    role: str  # dense, gate_up, down, head or other
    to: str
    rotation: int = 0
    scale_group: int | None = None
    note: str = ""
    missed: bool = False  # it did not get what was wished for
    smoothing: Smoothing | None = None  # if that changes it

    @property
    def rounded(self) -> bool:
        """Whether its weights become int8 or another type than they have."""
        return self.listed or self.to != self.tensor.type.name

    @property
    def listed(self) -> bool:
        """Whether the metadata must tell how to read it: it is int8 or rotated."""
        return self.to == "int8" or self.rotation != 0

    @property
    def copy(self) -> bool:
        """Whether the bytes stay as they are."""
        return not self.rounded and self.smoothing is None

    @property
    def type(self) -> ggml.GgmlType:
        """Weight type in the output file."""
        return ggml.type_by_name("q8_0" if self.to == "int8" else self.to)

    @property
    def size(self) -> int:
        """Bytes in the output file."""
        return self.type.row_bytes(self.tensor.columns) * self.tensor.rows


@dataclass
class Wishes:
    """The options that decide the plan; see `convert` for their meaning."""

    int8: list[str]
    keep: list[str]
    rotate: int = 128
    scale_group: int = 0
    gate_up: str | None = None
    down: str | None = None
    rotate_experts: int = 0  # block of codebook experts


def role_of(name: str, shape: tuple[int, ...]) -> str:
    """What a tensor is used for: dense, gate_up, down (experts), head or other."""
    if name == HEAD:
        return "head"
    match = _BLOCK_WEIGHT.fullmatch(name)
    role = _ROLES.get(match[1], "other") if match else "other"
    deeper = shape[2:] if role == "dense" else shape[3:]
    if len(shape) < (2 if role == "dense" else 3) or any(n != 1 for n in deeper):
        return "other"
    return role


def _why_not(name: str, shape: tuple[int, ...]) -> str:
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, name):
            return reason
    return "not a matrix" if len(shape) < 2 else "not a product that int8 is known to serve"


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def build(model: Model, wishes: Wishes, smoothing: Smoothing | None = None) -> list[Step]:
    """Steps for all tensors of `model`, in its order."""
    roles = {t.name: role_of(t.name, t.shape) for t in model.tensors.values()}
    _check_patterns(model, wishes, roles)
    if wishes.gate_up and not {"gate_up", "down"} & set(roles.values()):
        raise UsageError(f"{model.path}: has no expert tensors: leave --experts out")
    steps = [_step(t, roles[t.name], wishes) for t in model.tensors.values()]
    for step in steps:
        if smoothing and smoothing.touches(step.tensor.name):
            step.smoothing = smoothing
    return steps


def _check_patterns(model: Model, wishes: Wishes, roles: dict[str, str]) -> None:
    for pattern in wishes.keep:
        if not any(fnmatchcase(name, pattern) for name in roles):
            raise UsageError(f"--keep {pattern}: no tensor of {model.path} is called so")
    for pattern in wishes.int8:
        if pattern == "*":
            continue
        if pattern == HEAD and HEAD not in roles:
            raise UsageError(
                f"--int8 {pattern}: {model.path} has none: its output head is the embedding, "
                "which keeps its type"
            )
        if pattern in roles and roles[pattern] == "other":
            why = _why_not(pattern, model.tensors[pattern].shape)
            raise UsageError(f"--int8 {pattern}: this tensor keeps its type: {why}")
        hit = [name for name in roles if fnmatchcase(name, pattern)]
        if not any(roles[n] not in ("other", "head") or n == pattern for n in hit):
            raise UsageError(
                f"--int8 {pattern}: matches no tensor of {model.path} that can be int8"
            )


def _step(tensor: Tensor, role: str, wishes: Wishes) -> Step:
    name, own = tensor.name, tensor.type.name
    if role == "other":
        return Step(tensor, role, own, note=_why_not(name, tensor.shape))
    if _matches(name, wishes.keep):
        return Step(tensor, role, own, note="kept as asked")
    codebook = {"gate_up": wishes.gate_up, "down": wishes.down}.get(role)
    if not codebook:
        asked = HEAD in wishes.int8 if role == "head" else _matches(name, wishes.int8)
        if not asked:
            return Step(tensor, role, own, note=_why_not(name, ()) if role == "head" else "")
    if not tensor.type.readable:
        return Step(tensor, role, own, note=f"{own} cannot be decoded", missed=True)
    return (_codebook if codebook else _int8)(tensor, role, wishes)


def _int8(tensor: Tensor, role: str, wishes: Wishes) -> Step:
    columns = tensor.columns
    if columns % int8.QK:
        note = f"rows of {columns} are not a multiple of {int8.QK}: not int8"
        return Step(tensor, role, tensor.type.name, note=note, missed=True)
    block, group, note = rotation.block_for(columns, wishes.rotate), wishes.scale_group, ""
    if block != wishes.rotate:
        note = f"rotated in blocks of {block}: rows of {columns}"
    if group and columns % group:
        return Step(
            *(tensor, role, "int8", block, 0),
            note=f"rows of {columns} are not a multiple of {group}: one scale per row",
            missed=True,
        )
    return Step(tensor, role, "int8", block, group, note)


def _codebook(tensor: Tensor, role: str, wishes: Wishes) -> Step:
    columns, own = tensor.columns, tensor.type.name
    wished = wishes.gate_up if role == "gate_up" else wishes.down
    block = rotation.block_for(columns, wishes.rotate_experts)
    group = 32 if block else None
    for name in (wished, SMALL_BLOCKS):
        if columns % ggml.type_by_name(name).block:
            continue
        missed = name != wished
        note = f"already {own}, copied" if name == own and not block else ""
        if missed:
            needs = ggml.type_by_name(wished).block
            note = f"rows of {columns} are not a multiple of {needs}: {name}, not {wished}"
        return Step(tensor, role, name, block, group, note, missed)
    note = f"rows of {columns} are not a multiple of 32: not {wished}"
    return Step(tensor, role, own, note=note, missed=True)


def check_strict(model: Model, steps: list[Step]) -> None:
    """Raise if any tensor did not get what was wished for."""
    missed = [step for step in steps if step.missed]
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise OctetError(
            f"{model.path}: {shown(missed[0].tensor.name)}: {missed[0].note}{more}; nothing was "
            "written because of --strict"
        )

"""The `octet.*` keys of a converted file (docs/format.md): writing, reading, checking."""

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from . import rotation, writer
from .errors import OctetError, shown
from .reader import Model
from .shard import ARRAY, F32, STRING

VERSION = 1
GUARD = "octet"  # general.architecture of a file with rotated tensors
SCALE_GROUPS = (0, 32, 128)
SMOOTHINGS = ("none", "smoothquant", "updown", "smoothquant+updown")


def tool() -> str:
    """What `octet.tool` says about this program."""
    try:
        return f"llama-octet {version('llama-octet')}"
    except PackageNotFoundError:  # run from a source tree
        return "llama-octet"


@dataclass
class Octet:
    """What the keys say. `tensors`: name → (rotation block, scale group)."""

    base_architecture: str
    tensors: dict[str, tuple[int, int]] = field(default_factory=dict)
    seed: int = 0
    smoothing: str = "none"
    source_sha256: str = ""
    tool: str = ""
    alpha: float | None = None  # of smoothing by smoothquant

    @property
    def rotated(self) -> bool:
        """Whether any tensor is rotated, so that the file needs the architecture guard."""
        return any(block for block, _ in self.tensors.values())

    def entries(self) -> list[bytes]:
        """The encoded keys, in the order of docs/format.md."""
        return [
            writer.u32("octet.version", VERSION),
            writer.string("octet.base_architecture", self.base_architecture),
            writer.strings("octet.tensors", list(self.tensors)),
            writer.i32s("octet.tensors.rotation", [b for b, _ in self.tensors.values()]),
            writer.i32s("octet.tensors.scale_group", [g for _, g in self.tensors.values()]),
            writer.string("octet.rotation.axis", rotation.AXIS),
            writer.string("octet.rotation.hash", rotation.HASH),
            writer.u32("octet.rotation.seed", self.seed),
            writer.string("octet.smoothing", self.smoothing),
            *([] if self.alpha is None else [writer.f32("octet.smoothing.alpha", self.alpha)]),
            writer.string("octet.source.sha256", self.source_sha256),
            writer.string("octet.tool", self.tool),
        ]


def _wrong(model: Model, key: str, found, wanted: str) -> OctetError:
    return OctetError(
        f"{model.path}: {key} is {shown(repr(found))}, but {wanted}: convert the original model "
        "again with this version of llama-octet"
    )


def _typed(model: Model, key: str, kind: int, item: int):
    entry = model.values.get(key)
    if entry is None:
        raise _wrong(model, key, "missing", "a converted file must have it")
    if (entry.kind, entry.item) != (kind, item):
        raise _wrong(model, key, entry.type_name, "that is not its type")
    return model.get(key)


def read(model: Model) -> Octet | None:
    """The keys of `model`, checked against its tensors; None if it was never converted.

    Anything unknown or contradictory is an OctetError: a file read wrongly answers gibberish.
    """
    keys = [key for key in model.values if key.startswith("octet.")]
    architecture = model.text("general.architecture")
    if not keys and architecture != GUARD:
        return None
    found = _typed(model, "octet.version", 4, 4)
    if found != VERSION:
        raise OctetError(
            f"{model.path}: octet.version is {found}, this llama-octet reads {VERSION}: update "
            "llama-octet, or convert the original model again"
        )
    octet = Octet(
        base_architecture=_typed(model, "octet.base_architecture", STRING, STRING),
        seed=_typed(model, "octet.rotation.seed", 4, 4),
        smoothing=_typed(model, "octet.smoothing", STRING, STRING),
        source_sha256=model.text("octet.source.sha256") or "",
        tool=model.text("octet.tool") or "",
    )
    for key, only in (
        ("octet.rotation.axis", rotation.AXIS),
        ("octet.rotation.hash", rotation.HASH),
    ):
        value = _typed(model, key, STRING, STRING)
        if value != only:
            raise _wrong(model, key, value, f"only {only!r} is known")
    # It is in the weights already and asks nothing of whoever runs them, but an unknown one may.
    if octet.smoothing not in SMOOTHINGS:
        wanted = f"one of {', '.join(SMOOTHINGS)} is known"
        raise _wrong(model, "octet.smoothing", octet.smoothing, wanted)
    if "octet.smoothing.alpha" in model.values:
        octet.alpha = _typed(model, "octet.smoothing.alpha", F32, F32)
    if octet.seed > 65535:
        raise _wrong(model, "octet.rotation.seed", octet.seed, "0 to 65535 is allowed")
    names = _typed(model, "octet.tensors", ARRAY, STRING)
    blocks = _typed(model, "octet.tensors.rotation", ARRAY, 5).tolist()
    groups = _typed(model, "octet.tensors.scale_group", ARRAY, 5).tolist()
    for key, items in (
        ("octet.tensors.rotation", blocks),
        ("octet.tensors.scale_group", groups),
    ):
        if len(items) != len(names):
            raise _wrong(model, key, f"{len(items)} items", f"octet.tensors has {len(names)} names")
    for name, block, group in zip(names, blocks, groups, strict=True):
        _check_tensor(model, name, block, group)
        if name in octet.tensors:
            raise _wrong(model, "octet.tensors", name, "it may name a tensor only once")
        octet.tensors[name] = (block, group)
    if octet.base_architecture in ("", GUARD):
        raise _wrong(
            model, "octet.base_architecture", octet.base_architecture, "a model's is needed"
        )
    wanted = GUARD if octet.rotated else octet.base_architecture
    if architecture != wanted:
        raise _wrong(model, "general.architecture", architecture, f"{wanted!r} is needed")
    return octet


def _check_tensor(model: Model, name: str, block: int, group: int) -> None:
    tensor = model.tensors.get(name)
    if tensor is None:
        raise _wrong(model, "octet.tensors", name, "the file has no such tensor")
    what = f"of {shown(name)} with rows of {tensor.columns}"
    if block not in (0, *rotation.BLOCKS) or (block and tensor.columns % block):
        raise _wrong(model, "octet.tensors.rotation", block, f"0, 32, 64 or 128 is possible {what}")
    if group not in SCALE_GROUPS or (group and tensor.columns % group):
        raise _wrong(model, "octet.tensors.scale_group", group, f"0, 32 or 128 is possible {what}")
    if group != 32 and tensor.type.name != "q8_0":
        raise _wrong(
            model, "octet.tensors", name, f"it is {tensor.type.name} and int8 tensors are q8_0"
        )

"""What a kernel's machine code says: registers, spill, local memory, its inner loop.

The inner loop is the innermost one that holds a dpas. It has blocks that are not run in every step
of 32 columns: reading a block of weights (once per kSteps steps), and passing tiles on through
local memory (once per four). They are told apart by their messages and weighted so.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from . import OfflineError

REGISTER_BYTES = 64
_LINE = re.compile(
    r"^(?:\((?P<predicate>[^)]*)\))?\s*(?P<op>[a-z][\w.]*)\s*(?:\((?P<width>\d+)\|M\d+\))?(?P<rest>.*)$"
)
_MESSAGE = re.compile(r"// wr:\d+\+\d+, rd:\d+; (\S+)")
_TYPE = re.compile(r"(?:<[^>]*>|\.\d+|null|r\d+):(df|hf|bf|uq|ud|uw|ub|q|d|w|f|b)\b")
_SIZE = {"df": 8, "uq": 8, "q": 8, "f": 4, "ud": 4, "d": 4, "hf": 2, "bf": 2, "uw": 2, "w": 2}


@dataclass
class Instruction:
    """One line of the disassembly."""

    op: str
    width: int
    text: str
    message: str  # of a send: "load.slm.d32.a32"

    @property
    def cycles(self) -> int:
        """Issue cycles of a vector instruction: 64 bytes of the widest operand in each."""
        if self.op.startswith(("sync", "nop", "illegal", "dpas", "send")):
            return 0 if self.op.startswith(("sync", "nop", "illegal", "dpas")) else 1
        sizes = [_SIZE.get(t, 1) for t in _TYPE.findall(self.text)]
        return max(1, -(-self.width * max(sizes, default=4) // REGISTER_BYTES))

    @property
    def kind(self) -> str:
        """dpas, send, float, int, or control."""
        if self.op.startswith("dpas"):
            return "dpas"
        if self.op.startswith("send"):
            return "send"
        if self.op.startswith(("sync", "nop", "illegal")):
            return "wait"
        if self.op.startswith(("jmpi", "goto", "join", "while", "ret", "call", "brd", "brc")):
            return "control"
        types = _TYPE.findall(self.text)
        return "float" if types and types[0] in ("f", "hf", "df") else "int"


@dataclass
class Loop:
    """Weighted counts of one step of 32 columns (of 16 for fp16)."""

    dpas: float = 0
    instructions: float = 0  # all but waits and dpas
    cycles: float = 0  # of the vector pipes
    kinds: Counter = field(default_factory=Counter)
    messages: Counter = field(default_factory=Counter)  # (message, lanes): how often


@dataclass
class Report:
    """A compiled kernel for one device."""

    registers: int
    spill: int
    private: int
    local: int
    barriers: int
    dpas: int
    instructions: int
    cycles: int  # of the vector pipes if every instruction ran once
    rotation_cycles: int  # the part of it in blocks that rotate rows
    fma_lanes: int  # of mad with float operands
    denormals: bool  # kept, for fp16 and f32
    loop: Loop | None


def _number(info: str, name: str) -> int:
    found = re.search(rf"^\s*{name}:\s+(\d+)$", info, re.M)
    return int(found[1]) if found else 0


def parse(assembly: str) -> list[tuple[str | None, list[Instruction]]]:
    """Basic blocks in order: label (None: no label) and instructions; a jump ends a block."""
    blocks: list[tuple[str | None, list[Instruction]]] = [(None, [])]
    for raw in assembly.splitlines():
        line = raw.strip()
        label = re.fullmatch(r"(L\d+):", line)
        if label:
            blocks.append((label[1], []))
            continue
        found = _LINE.match(line)
        if not line or line.startswith(("//", ".")) or not found:
            continue
        message = _MESSAGE.search(line)
        text = found["rest"].split("//")[0].split("{")[0]
        blocks[-1][1].append(
            Instruction(found["op"], int(found["width"] or 1), text, message[1] if message else "")
        )
        if found["op"].startswith(("jmpi", "goto", "while")):
            blocks.append((None, []))
    return [b for b in blocks if b[1] or b[0]]


def _rotates(block: list[Instruction]) -> bool:
    """Butterflies inside of registers are 16 lanes wide, and come by the dozen."""
    return sum(x.op == "mad" and x.width == 16 and x.kind == "float" for x in block) >= 12


def _inner_loop(blocks) -> list[list[Instruction]] | None:
    at = {label: i for i, (label, _) in enumerate(blocks) if label}
    best = None
    for i, (_, code) in enumerate(blocks):
        if not code or not code[-1].op.startswith(("jmpi", "while")):
            continue
        target = re.search(r"L\d+", code[-1].text)
        if not target or at.get(target[0], i + 1) > i:
            continue
        body = [b[1] for b in blocks[at[target[0]] : i + 1]]
        if any(x.op.startswith("dpas") for b in body for x in b):
            if best is None or len(body) < len(best):
                best = body
    return best


def _weigh(body: list[list[Instruction]], block_steps: int, steps: int) -> Loop:
    """`steps` of 32 columns are in one pass of the loop, `block_steps` in a block of weights."""
    loop = Loop()
    for block in body:
        messages = {x.message for x in block if x.message}
        own_dpas = any(x.op.startswith("dpas") for x in block)
        weight = 1.0
        if not own_dpas:
            if any(x.op == "sync.bar" for x in block) or any(".slm." in m for m in messages):
                weight = 1 / max(1, 4 // steps)
            elif any(m.startswith("load.ugm.d16u32") for m in messages):
                weight = 1 / block_steps
            elif any(re.match(r"load\.ugm\.d(32|64)x\d+t", m) for m in messages):
                weight = 1 / max(1, 4 // steps)
        for x in block:
            scaled = weight / steps
            loop.kinds[x.kind] += scaled
            loop.cycles += scaled * x.cycles
            if x.kind == "dpas":
                loop.dpas += scaled
            elif x.kind != "wait":
                loop.instructions += scaled
            if x.message:
                loop.messages[x.message, x.width] += scaled
    return loop


def report(assembly: str, info: str, block_steps: int = 1, steps: int = 1) -> Report:
    """Reads a disassembly and its .ze_info."""
    blocks = parse(assembly)
    code = [x for _, b in blocks for x in b]
    if not code:
        raise OfflineError("the disassembly holds no instruction")
    body = _inner_loop(blocks)
    control = [
        int(re.search(r"(-?(?:0x[0-9A-Fa-f]+|\d+)):u?d$", x.text.strip())[1], 0) & 0xFFFFFFFF
        for x in code
        if x.op == "or" and x.text.strip().startswith("cr0.0")
    ]
    return Report(
        registers=_number(info, "grf_count"),
        spill=_number(info, "spill_size"),
        private=_number(info, "private_size"),
        local=_number(info, "slm_size"),
        barriers=_number(info, "barrier_count"),
        dpas=sum(x.op.startswith("dpas") for x in code),
        instructions=len(code),
        cycles=sum(x.cycles for x in code),
        rotation_cycles=sum(sum(x.cycles for x in b) for _, b in blocks if _rotates(b)),
        fma_lanes=sum(x.width for x in code if x.op == "mad" and x.kind == "float"),
        # Bit 7 keeps denormals of f32, bit 10 those of fp16.
        denormals=bool(control) and control[0] & 0x480 == 0x480,
        loop=_weigh(body, block_steps, steps) if body else None,
    )

"""The LLVM IR of a compiled kernel, made into IR that runs on this machine.

IGC leaves the IR of an ESIMD kernel as it stands after reading the SPIR-V: ordinary LLVM with plain
loads and stores, a few llvm.genx intrinsics and the work-item builtins of SPIR-V. Here these become
shuffles, LLVM's own intrinsics, and calls of runtime.c. One that is not known is an error.
"""

import re
from dataclasses import dataclass

from . import OfflineError

_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}
_CALL = re.compile(
    r"^\s*(?:(%\S+) = )?(?:tail )?call (?:spir_func )?(.+?) @([\w.]+)\((.*)\)(?: #\d+)?$"
)
# Builtins and the function of LLVM that does the same. The hardware's minimum and maximum return
# the operand that is not a NaN.
_GENX = {
    **{"rnde": "roundeven", "cbit": "ctpop", "absf": "fabs", "fmin": "minnum", "fmax": "maxnum"},
    **{name: name for name in ("smin", "smax", "umin", "umax")},
}
_SPIRV = {
    **{"fma": "fma", "fabs": "fabs", "rint": "roundeven", "fmin": "minnum", "fmax": "maxnum"},
    "popcount": "ctpop",
}
_LLVM = ("umin", "umax", "smin", "smax", "fabs", "ctpop", "fma")
_WORK_ITEM = {
    "_Z33__spirv_BuiltInGlobalInvocationIdi": "rt_global_id",
    "_Z32__spirv_BuiltInLocalInvocationIdi": "rt_local_id",
}
# Precisions of B and A (8: int8, 10: fp16), depth, repeat, signs of both.
_DPAS = {
    ("i32", 8, 8, 8, 8, 1, 1): "rt_dpas_i8",
    ("float", 10, 10, 8, 8, 1, 1): "rt_dpas_half",
}
_RUNTIME = """\
declare i64 @rt_global_id(i32)
declare i64 @rt_local_id(i32)
declare i64 @rt_local(i64)
declare void @rt_barrier()
declare void @rt_aligned(i64, i64)
declare void @rt_inside(i64, i64)
declare void @rt_dpas_i8(ptr, ptr, ptr)
declare void @rt_dpas_half(ptr, ptr, ptr)"""


@dataclass
class Program:
    """IR to compile here, with `octet_entry(ptr arguments)`, which has an 8-byte slot for each."""

    text: str
    local_bytes: int
    arguments: list[str]  # types
    fma_lanes: int  # of the fma calls in the source


def _split(text: str) -> list[str]:
    """Comma-separated operands; commas inside brackets do not count."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    tail = text[start:].strip()
    return [*parts, tail] if tail else parts


def _typed(operand: str) -> tuple[str, str]:
    """`<4 x i32> %5` as its type and its value."""
    end = operand.index(">") + 1 if operand.startswith("<") else operand.index(" ")
    return operand[:end], operand[end:].strip()


def _vector(kind: str) -> tuple[int, str]:
    found = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    if not found:
        raise OfflineError(f"the IR has a {kind} where a vector is expected")
    return int(found[1]), found[2]


def _number(operand: str) -> int | None:
    """A constant integer operand; None if it is not constant."""
    value = _typed(operand)[1]
    return int(value) if re.fullmatch(r"-?\d+", value) else None


def _indices(values: list[int]) -> str:
    """A mask of shufflevector."""
    return f"<{len(values)} x i32> <{', '.join(f'i32 {v}' for v in values)}>"


def _all_true(operand: str) -> bool:
    value = _typed(operand)[1]
    return value == "splat (i1 true)" or (
        value.startswith("<") and set(_split(value[1:-1])) == {"i1 true"}
    )


class _Translator:
    def __init__(self):
        self.functions: dict[tuple, tuple[str, str]] = {}  # key: (name, text)
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%octet.{self.count}"

    def helper(self, what: str, key: tuple, kind: str, operands: str, body) -> str:
        """Name of a function of its own, written once per key; body() is its lines."""
        key = (what, *key)
        if key not in self.functions:
            name = f"@octet.{what}.{len(self.functions)}"
            head = f"define internal {kind} {name}({operands}) alwaysinline {{"
            self.functions[key] = (name, "\n".join([head, *body(), "}"]))
        return self.functions[key][0]

    # ---- regions: rows of `width` elements `stride` apart; the rows are `vstride` apart

    @staticmethod
    def positions(count: int, args: list[str]) -> list[int]:
        vstride, width, stride = (_number(a) for a in args)
        if None in (vstride, width, stride) or not width:
            raise OfflineError(f"the IR has a region whose shape is not constant: {args}")
        return [i // width * vstride + i % width * stride for i in range(count)]

    def read_region(self, out: str, kind: str, args: list[str]) -> list[str]:
        count, element = _vector(kind)
        source_kind, source = _typed(args[0])
        size, _ = _vector(source_kind)
        at = self.positions(count, args[1:4])
        offset = _number(args[4])
        if offset is not None:
            base, rest = divmod(offset, _BYTES[element])
            if rest or max(at) + base >= size:
                raise OfflineError(f"the IR reads a region outside of {source_kind}")
            mask = _indices([base + p for p in at])
            return [f"{out} = shufflevector {source_kind} {source}, {source_kind} poison, {mask}"]
        # An offset known at run time only: one for all, or one for each element.
        offset_kind, value = _typed(args[4])
        each = offset_kind.startswith("<")

        def body():
            lines = [f"%m = alloca {source_kind}, align 64"]
            lines += [f"store {source_kind} %v, ptr %m, align 64"]
            previous = "poison"
            for i in range(count):
                if each:
                    lines += [f"%x{i} = extractelement {offset_kind} %o, i32 {i}"]
                    lines += [f"%b{i} = zext {_vector(offset_kind)[1]} %x{i} to i64"]
                else:
                    lines += [f"%z{i} = zext {offset_kind} %o to i64"]
                    lines += [f"%b{i} = add i64 %z{i}, {at[i] * _BYTES[element]}"]
                lines += [f"call void @rt_inside(i64 %b{i}, i64 {(size - 1) * _BYTES[element]})"]
                lines += [f"%p{i} = getelementptr i8, ptr %m, i64 %b{i}"]
                lines += [f"%e{i} = load {element}, ptr %p{i}, align 1"]
                lines += [f"%r{i} = insertelement {kind} {previous}, {element} %e{i}, i32 {i}"]
                previous = f"%r{i}"
            return [*lines, f"ret {kind} {previous}"]

        key = (source_kind, kind, tuple(at), offset_kind)
        name = self.helper("read", key, kind, f"{source_kind} %v, {offset_kind} %o", body)
        return [f"{out} = call {kind} {name}({source_kind} {source}, {offset_kind} {value})"]

    def write_region(self, out: str, kind: str, args: list[str]) -> list[str]:
        size, element = _vector(kind)
        _, old = _typed(args[0])
        new_kind, new = _typed(args[1])
        count, _ = _vector(new_kind)
        offset = _number(args[5])
        if offset is None:
            raise OfflineError("the IR writes a region whose offset is not constant")
        base, rest = divmod(offset, _BYTES[element])
        at = [base + p for p in self.positions(count, args[2:5])]
        where = {p: i for i, p in enumerate(at)}
        if rest or len(where) != count or max(where) >= size:
            raise OfflineError(f"the IR writes a region outside of {kind}")
        lines = []
        if not _all_true(args[7]):
            mask_kind, mask = _typed(args[7])
            if _vector(mask_kind) != (count, "i1"):
                raise OfflineError(f"the IR writes a region under a {mask_kind}")
            kept, chosen = self.fresh(), self.fresh()
            lines += [f"{kept} = shufflevector {kind} {old}, {kind} poison, {_indices(at)}"]
            lines += [f"{chosen} = select {mask_kind} {mask}, {new_kind} {new}, {new_kind} {kept}"]
            new = chosen
        wide = self.fresh()
        spread = _indices([where.get(i, 0) for i in range(size)])
        blend = _indices([size + i if i in where else i for i in range(size)])
        return [
            *lines,
            f"{wide} = shufflevector {new_kind} {new}, {new_kind} poison, {spread}",
            f"{out} = shufflevector {kind} {old}, {kind} {wide}, {blend}",
        ]

    # ---- memory

    def gather(self, out, kind, size, mask, addresses, old, local, per_lane=1) -> list[str]:
        """Lanes load pieces of `size` bytes; piece v of lane n is element v · lanes + n.

        With per_lane > 1 a lane has one piece and room for so many in the result.
        """
        total, element = _vector(kind)
        address_kind = _typed(addresses)[0]
        lanes, width = _vector(address_kind)
        values = total // lanes // per_lane
        known = total == lanes * values * per_lane and size == _BYTES[element]
        if not known or width not in ("i32", "i64"):
            raise OfflineError(f"the IR gathers {kind} by {address_kind}: not known")

        def body():
            lines = [f"%r = alloca {kind}, align 64", f"store {kind} %old, ptr %r, align 64"]
            lines += ["br label %l0"]
            for n in range(lanes):
                lines += [f"l{n}:", f"%m{n} = extractelement <{lanes} x i1> %m, i32 {n}"]
                lines += [f"br i1 %m{n}, label %t{n}, label %l{n + 1}", f"t{n}:"]
                lines += [f"%a{n} = extractelement {address_kind} %a, i32 {n}"]
                wide = f"zext i32 %a{n} to i64" if width == "i32" else f"add i64 0, %a{n}"
                where = f"call i64 @rt_local(i64 %w{n})" if local else f"add i64 0, %w{n}"
                lines += [f"%w{n} = {wide}", f"%g{n} = {where}"]
                lines += [f"call void @rt_aligned(i64 %g{n}, i64 {size})"]
                for v in range(values):
                    slot = (v * lanes + n) * per_lane
                    lines += [f"%o{n}.{v} = add i64 %g{n}, {v * size}"]
                    lines += [f"%p{n}.{v} = inttoptr i64 %o{n}.{v} to ptr"]
                    lines += [f"%e{n}.{v} = load {element}, ptr %p{n}.{v}, align 1"]
                    lines += [f"%q{n}.{v} = getelementptr {element}, ptr %r, i64 {slot}"]
                    lines += [f"store {element} %e{n}.{v}, ptr %q{n}.{v}, align 1"]
                lines += [f"br label %l{n + 1}"]
            return [*lines, f"l{lanes}:", f"%x = load {kind}, ptr %r, align 64", f"ret {kind} %x"]

        operands = f"<{lanes} x i1> %m, {address_kind} %a, {kind} %old"
        key = (kind, address_kind, local, per_lane)
        name = self.helper("gather", key, kind, operands, body)
        return [f"{out} = call {kind} {name}({mask}, {addresses}, {old})"]

    def lsc_load(self, out: str, kind: str, args: list[str], local: bool) -> list[str]:
        # mask, subopcode, two cache hints, scale, offset, data size, vector size, order, channels,
        # addresses, surface, old value. Only the plain form is known.
        subopcode, _, _, scale, offset, size, vector, order, _ = (_number(a) for a in args[1:10])
        size = {3: 4, 4: 8}.get(size)  # d32, d64
        lanes, _ = _vector(_typed(args[0])[0])
        total, _ = _vector(kind)
        known = (subopcode, scale, offset, order) == (0, 1, 0, 1) and vector in (1, 2, 3, 4)
        if not known or not size or total != lanes * vector:
            raise OfflineError(f"the IR has an LSC load of an unknown form: {kind} {args[1:10]}")
        return self.gather(out, kind, size, args[0], args[10], args[12], local)

    def dpas(self, out: str, kind: str, args: list[str]) -> list[str]:
        count, element = _vector(kind)
        numbers = tuple(_number(a) for a in args[3:])
        function = _DPAS.get((element, *numbers))
        if not function or count != 128:
            raise OfflineError(f"the IR has a dpas of an unknown form: {kind} {numbers}")
        kinds = [_typed(a)[0] for a in args[:3]]

        def body():
            lines = []
            for letter, its in zip("cba", kinds, strict=True):
                lines += [f"%p{letter} = alloca {its}, align 64"]
                lines += [f"store {its} %{letter}, ptr %p{letter}, align 64"]
            lines += [f"call void @{function}(ptr %pc, ptr %pb, ptr %pa)"]
            return [*lines, f"%r = load {kind}, ptr %pc, align 64", f"ret {kind} %r"]

        operands = ", ".join(f"{its} %{letter}" for letter, its in zip("cba", kinds, strict=True))
        name = self.helper("dpas", (function, *kinds), kind, operands, body)
        return [f"{out} = call {kind} {name}({', '.join(args[:3])})"]

    # ---- everything

    @staticmethod
    def plain(out: str, kind: str, function: str, args: list[str]) -> list[str]:
        """LLVM's own function, element by element."""
        count, element = _vector(kind)
        element = {"float": "f32", "half": "f16", "double": "f64"}.get(element, element)
        return [f"{out} = call {kind} @llvm.{function}.v{count}{element}({', '.join(args)})"]

    def genx(self, out: str | None, kind: str, base: str, args: list[str]) -> list[str] | None:
        if base in ("rdregioni", "rdregionf"):
            return self.read_region(out, kind, args)
        if base in ("wrregioni", "wrregionf"):
            return self.write_region(out, kind, args)
        if base in ("lsc.load.merge.stateless", "lsc.load.merge.slm"):
            return self.lsc_load(out, kind, args, base.endswith("slm"))
        if base == "svm.gather":
            # mask, log2 of the elements of a lane, addresses, old value. 8- and 16-bit elements
            # take the room of 32 bits.
            per_lane, size = 1 << _number(args[1]), _BYTES[_vector(kind)[1]]
            if size * per_lane != 4:
                raise OfflineError(f"the IR has an unknown svm.gather of {kind}")
            return self.gather(out, kind, size, args[0], args[2], args[3], False, per_lane)
        if base == "gather.masked.scaled2":
            # log2 of the size, scale, surface (254: local memory), offset, offsets, mask
            if [_number(a) for a in args[:4]] != [2, 0, 254, 0]:
                raise OfflineError(f"the IR has an unknown gather: {args[:4]}")
            return self.gather(out, kind, 4, args[5], args[4], f"{kind} poison", True)
        if base == "dpas2":
            return self.dpas(out, kind, args)
        if base == "barrier":
            return ["call void @rt_barrier()"]
        if base == "fence":
            return []  # one fiber runs at a time
        if base == "ieee.div":
            return [f"{out} = fdiv {args[0]}, {_typed(args[1])[1]}"]
        return self.plain(out, kind, _GENX[base], args) if base in _GENX else None

    def call(self, out: str | None, kind: str, name: str, text: str) -> list[str]:
        if name == "llvm.assume":
            return []
        args = _split(text)
        lines = None
        genx = re.match(r"llvm\.genx\.([a-z0-9.]*?)(?=\.v\d|$)", name)
        spirv = re.match(r"_Z\d+__spirv_ocl_([a-z]+)Dv", name)
        llvm = re.match(r"llvm\.([a-z]+)\.v", name)
        if genx:
            lines = self.genx(out, kind, genx[1], args)
        elif name in _WORK_ITEM:
            lines = [f"{out} = call i64 @{_WORK_ITEM[name]}({text})"]
        elif spirv and spirv[1] in _SPIRV:
            lines = self.plain(out, kind, _SPIRV[spirv[1]], args)
        elif llvm and llvm[1] in _LLVM:
            lines = self.plain(out, kind, llvm[1], args)
        if lines is None:
            raise OfflineError(f"the IR calls {name}, which the executor does not know")
        return lines

    def local_pointers(self, line: str) -> list[str]:
        """A line in which addresses of local memory became pointers, after what that takes."""
        pointer = re.match(r"\s*(%\S+) = inttoptr (i32|i64) (\S+) to ptr addrspace\(3\)$", line)
        if pointer:
            offset, address = self.fresh(), self.fresh()
            widen = "zext i32" if pointer[2] == "i32" else "bitcast i64"
            return [
                f"{offset} = {widen} {pointer[3]} to i64",
                f"{address} = call i64 @rt_local(i64 {offset})",
                f"{pointer[1]} = inttoptr i64 {address} to ptr",
            ]
        constant = re.search(
            r"ptr addrspace\(3\) (?:null|inttoptr \(i\d+ (\d+) to ptr addrspace\(3\)\))", line
        )
        if not constant:
            return [line]
        value, address = self.fresh(), self.fresh()
        return [
            f"{value} = call i64 @rt_local(i64 {constant[1] or 0})",
            f"{address} = inttoptr i64 {value} to ptr",
            line.replace(constant[0], f"ptr {address}"),
        ]


def translate(source: str) -> Program:
    """The IR file's text, made runnable. Raises OfflineError at anything unknown."""
    kernel = re.search(
        r"^define (?:dso_local )?spir_kernel void @\w+\((.*)\) #(\d+).*\{$", source, re.M
    )
    if not kernel or source.count("\ndefine ") != 1:
        raise OfflineError("the IR does not hold exactly one kernel")
    operands = _split(kernel[1])
    kinds = [re.match(r"\w+", a)[0] for a in operands]
    names = [a.split()[-1] for a in operands]
    attributes = re.search(rf"^attributes #{kernel[2]} = .*$", source, re.M)[0]
    local = re.search(r'"VCSLMSize"="(\d+)"', attributes)

    translator = _Translator()
    lines, fma_lanes = [], 0
    body = source[kernel.end() : source.index("\n}", kernel.end())]
    for raw in body.splitlines():
        line = re.sub(r", !\S+ !\d+", "", raw).split(";")[0].rstrip()
        call = _CALL.match(line)
        if call:
            lines += translator.call(*call.groups())
            if "__spirv_ocl_fma" in line:
                fma_lanes += _vector(call[2])[0]
            continue
        if " call " in line:
            raise OfflineError(f"the IR has a call of an unknown form: {line.strip()[:200]}")
        for part in translator.local_pointers(line):
            part = re.sub(r" addrspace\(\d\)", "", part)
            lines += [re.sub(r"addrspacecast (ptr \S+) to ptr", r"bitcast \1 to ptr", part)]

    declared = ", ".join(f"{k} {n}" for k, n in zip(kinds, names, strict=True))
    passed = ", ".join(f"{k} %a{i}" for i, k in enumerate(kinds))
    entry = ["define void @octet_entry(ptr %arguments) {"]
    for i, kind in enumerate(kinds):
        entry += [f"%p{i} = getelementptr i8, ptr %arguments, i64 {8 * i}"]
        entry += [f"%a{i} = load {kind}, ptr %p{i}, align 8"]
    entry += [f"call void @octet_kernel({passed})", "ret void", "}"]
    text = [
        *re.findall(r"^%\S+ = type .*$", source, re.M),
        _RUNTIME,
        *(helper for _, helper in translator.functions.values()),
        f"define internal void @octet_kernel({declared}) {{",
        *lines,
        "}",
        *entry,
    ]
    return Program("\n".join(text) + "\n", int(local[1]) if local else 0, kinds, fma_lanes)

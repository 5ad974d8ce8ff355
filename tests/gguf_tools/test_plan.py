import pytest
from llama_octet.gguf_tools import plan
from llama_octet.gguf_tools.errors import OctetError, UsageError
from llama_octet.gguf_tools.reader import Model
from rawfile import Raw

F32, F16, I32 = 0, 1, 26


def build(tmp_path, tensors, **wishes):
    """The steps for tensors {name: shape}, by name."""
    raw = Raw()
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        raw.add(name, shape, F16, bytes(size))
    wishes = {"int8": ["*"], "keep": []} | wishes
    with Model(raw.write(tmp_path / "m.gguf")) as model:
        return {s.tensor.name: s for s in plan.build(model, plan.Wishes(**wishes))}


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        *(
            (f"blk.0.{stem}.weight", (64, 8), "dense")
            for stem in "attn_q attn_k attn_v attn_qkv attn_output attn_gate ffn_gate ffn_up "
            "ffn_down ffn_gate_shexp ffn_up_shexp ffn_down_shexp attn_q_a attn_kv_b ssm_in "
            "shortconv.in_proj time_mix_key inp_gate".split()
        ),
        ("blk.123.attn_q.weight", (64, 8), "dense"),
        ("enc.blk.0.attn_o.weight", (64, 8), "dense"),
        ("dec.blk.0.cross_attn_q.weight", (64, 8), "dense"),
        ("blk.0.ffn_gate_exps.weight", (64, 8, 4), "gate_up"),
        ("blk.0.ffn_gate_up_exps.weight", (64, 8, 4), "gate_up"),
        ("blk.0.ffn_down_exps.weight", (64, 8, 1), "down"),
        ("output.weight", (64, 8), "head"),
        *(
            (name, (64, 8), "other")
            for name in "token_embd.weight position_embd.weight token_types.weight "
            "per_layer_token_embd.weight blk.0.ffn_gate_inp.weight blk.0.ffn_gate_inp_shexp.weight "
            "blk.0.attn_q.bias blk.0.ssm_conv1d.weight blk.0.ssm_x.weight "
            "blk.0.time_mix_w2.weight blk.0.attn_k_b.weight blk.0.attn_v_b.weight "
            "blk.0.attn_output_a.weight blk.0.attn_rel_b.weight blk.0.unheard_of.weight "
            "cls.weight v.blk.0.attn_q.weight blk.0.ffn_down_exps.bias "
            "blk.0.attn_q.weight.lora_a blk.0.nextn.embed_tokens.weight".split()
        ),
        ("blk.0.attn_norm.weight", (64,), "other"),
        ("blk.0.attn_q.weight", (64,), "other"),
        ("blk.0.attn_q.weight", (64, 8, 4), "other"),
        ("blk.0.ffn_gate_exps.weight", (64, 8), "other"),
    ],
)
def test_roles(name, shape, role):
    assert plan.role_of(name, shape) == role


def test_everything_that_keeps_its_type_says_why(tmp_path):
    names = "token_embd output_norm blk.0.ffn_gate_inp blk.0.ssm_conv1d blk.0.attn_k_b output"
    steps = build(tmp_path, {f"{n}.weight": (64, 2) for n in names.split()})
    assert all(s.copy and s.note and not s.missed for s in steps.values())


def test_fallbacks(tmp_path):
    tensors = {
        "blk.0.attn_q.weight": (33, 2),
        "blk.0.attn_k.weight": (1, 2),
        "blk.0.attn_v.weight": (96, 2),
        "blk.0.ffn_up_exps.weight": (288, 2, 2),
        "blk.0.ffn_gate_exps.weight": (256, 2, 2),
        "blk.0.ffn_down_exps.weight": (96, 2, 2),
        "blk.1.ffn_down_exps.weight": (40, 2, 2),
    }
    steps = build(tmp_path, tensors, gate_up="iq3_s", down="q2_0", scale_group=128)
    got = {
        n.removesuffix(".weight"): (s.to, s.rotation, s.scale_group, s.missed)
        for n, s in steps.items()
    }
    assert got == {
        "blk.0.attn_q": ("f16", 0, None, True),
        "blk.0.attn_k": ("f16", 0, None, True),
        "blk.0.attn_v": ("int8", 32, 0, True),  # no groups of 128 in 96 columns
        "blk.0.ffn_up_exps": ("iq4_nl", 0, None, True),
        "blk.0.ffn_gate_exps": ("iq3_s", 0, None, False),
        "blk.0.ffn_down_exps": ("iq4_nl", 0, None, True),
        "blk.1.ffn_down_exps": ("f16", 0, None, True),
    }
    assert "256" in steps["blk.0.ffn_up_exps.weight"].note


def test_a_smaller_rotation_is_told_but_not_missed(tmp_path):
    step = build(tmp_path, {"blk.0.attn_q.weight": (576, 2)})["blk.0.attn_q.weight"]
    assert (step.rotation, step.missed) == (64, False)
    assert "64" in step.note


def test_patterns(tmp_path):
    tensors = {f"blk.{i}.{n}.weight": (64, 2) for i in (0, 1) for n in ("attn_q", "ffn_up")}
    tensors["output.weight"] = (64, 2)

    def int8(**wishes):
        return {n for n, s in build(tmp_path, tensors, **wishes).items() if s.to == "int8"}

    blocks = {n for n in tensors if n != "output.weight"}
    assert int8() == blocks
    assert int8(int8=["*", "output.weight"]) == set(tensors)
    assert int8(int8=["output.weight"]) == {"output.weight"}
    assert int8(int8=[]) == set()
    assert int8(int8=["*ffn*", "blk.1.*"]) == blocks - {"blk.0.attn_q.weight"}
    assert int8(keep=["blk.1.*"]) == {"blk.0.attn_q.weight", "blk.0.ffn_up.weight"}


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"int8": ["blk.7.*"]}, "matches no tensor"),
        ({"int8": ["token_embd.weight"]}, "an embedding"),
        ({"int8": ["output.weight"]}, "is the embedding"),
        ({"int8": ["token*"]}, "matches no tensor"),
        ({"keep": ["nothing"]}, "no tensor"),
        ({"gate_up": "iq3_s", "down": "iq4_nl"}, "no expert tensors"),
    ],
)
def test_wishes_that_mean_nothing_here(tmp_path, wishes, words):
    tensors = {"token_embd.weight": (64, 2), "blk.0.attn_q.weight": (64, 2)}
    with pytest.raises(UsageError, match=words):
        build(tmp_path, tensors, **wishes)


def test_an_undecodable_type_is_kept(tmp_path):
    raw = Raw().add("blk.0.attn_q.weight", (64, 2), I32, bytes(512))
    with Model(raw.write(tmp_path / "m.gguf")) as model:
        (step,) = plan.build(model, plan.Wishes(["*"], []))
        assert step.copy
        assert step.missed
        with pytest.raises(OctetError, match=r"attn_q.*i32.*--strict"):
            plan.check_strict(model, [step])


def test_a_codebook_source_of_the_wished_type_is_copied(tmp_path):
    raw = Raw().add("blk.0.ffn_up_exps.weight", (32, 2, 2), 20, bytes(18 * 4))
    with Model(raw.write(tmp_path / "m.gguf")) as model:
        (step,) = plan.build(model, plan.Wishes(["*"], [], gate_up="iq4_nl", down="q8_0"))
        assert step.copy
        assert not step.missed
        assert "already" in step.note

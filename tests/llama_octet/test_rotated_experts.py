"""Codebook experts stored in a rotated basis: the plugin computes what the file says."""

import models
import pytest


@pytest.mark.parametrize("pair", ["iq3_s:iq4_nl", "iq2_s:q2_0"])
def test_they_are_the_model_that_their_integers_stand_for(
    octet_json, convert, tmp_path, tmp_path_factory, pair
):
    source = models.random_moe(tmp_path / "moe.gguf", layers=1)
    rotated = convert(source, "--int8", "none", "--experts", pair, "--rotate-experts", "128")
    floats = models.make_float_experts(rotated, tmp_path / "floats.gguf")
    text = tmp_path / "text.txt"
    text.write_text("The river begins on a hill, and the water finds the lowest way. " * 8)
    result = octet_json(
        *("eval", floats, rotated, f"{rotated}@OCTET_MOE=0", source),
        *("--text", text, "--positions", 60, "--threads", 1, "--repeats", 1),
    )
    _, ours, exact, unrounded = result["candidates"]
    assert any(name.startswith("chain") for name in ours["kernels"])
    assert any("float" in name for name in exact["kernels"])
    # Float products differ by the order of additions alone, int8 activations by a little more;
    # without rotating the activations nothing would be left of the model.
    assert exact["kl"]["mean"] < 1e-6
    assert exact["kl"]["mean"] < ours["kl"]["mean"] < 0.1 * unrounded["kl"]["mean"]

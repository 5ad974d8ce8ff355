import gguf
import numpy as np
import pytest
from conftest import read
from llama_octet.gguf_tools import imatrix, rotation
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.imatrix import Contents, Importance
from llama_octet.gguf_tools.reader import Model
from llama_octet.gguf_tools.statistics import Sums

GATE = "blk.0.ffn_gate_exps.weight"
PAIR = (".in_sum2", ".counts")


def write(path, sums, counts, name=GATE, kind="imatrix"):
    """An importance matrix as llama-imatrix writes it: raw sums of squares, and counts."""
    writer = gguf.GGUFWriter(str(path), "unused")
    writer.kv_data[0].clear()  # the real ones have no architecture
    writer.add_type(kind)
    writer.add_array("imatrix.datasets", ["text"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_tensor(f"{name}.in_sum2", np.asarray(sums, np.float32))
    writer.add_tensor(f"{name}.counts", np.asarray(counts, np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def of(path, model, name=GATE):
    with Importance(path) as importance, Model(model) as opened:
        return importance.of(opened.tensors[name])


def test_means_per_expert_and_neutral_ones_for_the_rest(tmp_path, moe):
    sums = np.random.default_rng(0).random((4, 256), np.float32) + 0.1
    sums[2] = 0
    table, missing = of(write(tmp_path / "i.gguf", sums, [2, 4, 0, 1]), moe)
    assert missing == [2]
    assert (table[2] == 1).all()
    assert np.allclose(table[1], sums[1] / 4, rtol=1e-6)
    assert table.shape == (4, 256)
    assert table.dtype == np.float32


def test_a_column_never_seen_keeps_a_little_weight(tmp_path, moe):
    sums = np.ones((4, 256))
    sums[:, 7] = 0
    table, missing = of(write(tmp_path / "i.gguf", sums, np.ones(4)), moe)
    assert missing == []
    assert (table[:, 7] > 0).all()
    assert (table[:, 7] < 1e-5).all()


def test_one_row_serves_all_experts(tmp_path, moe):
    table, _ = of(write(tmp_path / "i.gguf", np.full((1, 256), 3.0), [1]), moe)
    assert (table == 3).all()
    assert table.shape == (4, 256)


def test_a_tensor_it_does_not_know(tmp_path, moe):
    path = write(tmp_path / "i.gguf", np.ones((4, 256)), np.ones(4), name="other.weight")
    assert of(path, moe) == (None, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("sums", "counts"),
    [
        (np.ones((4, 128)), np.ones(4)),
        (np.ones((3, 256)), np.ones(3)),
        (np.ones((4, 256)), np.ones(3)),
        (np.full((4, 256), np.nan), np.ones(4)),
        (np.full((4, 256), -1.0), np.ones(4)),
        (np.ones((4, 256)), np.full(4, np.inf)),
    ],
)
def test_a_matrix_of_another_model_or_a_broken_one(tmp_path, moe, sums, counts):
    path = write(tmp_path / "i.gguf", sums, counts)
    with pytest.raises(OctetError, match=GATE):
        of(path, moe)


def test_not_an_importance_matrix(tmp_path, moe):
    with pytest.raises(OctetError, match=r"general\.type"):
        Importance(moe)
    (tmp_path / "old.dat").write_bytes(bytes(1000))
    with pytest.raises(OctetError, match="not a GGUF file"):
        Importance(tmp_path / "old.dat")


# ---- what octet calibrate adds ----


def measured(experts=4, columns=256, block=128, seed=5):
    """Sums of random rows, four per expert but the last, and those rows."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4 * (experts - 1), columns)).astype(np.float32)
    sums = Sums(experts, columns, rotation.block_for(columns, block), seed, gram=True)
    sums.add(x, np.repeat(np.arange(experts - 1), 4)[:, None])
    return sums, x.reshape(experts - 1, 4, columns)


def contents(sums, block=128, seed=5):
    up = GATE.replace("gate", "up")
    found = sums.statistics()
    return Contents(
        datasets=["a.txt"],
        chunks=3,
        chunk_size=512,
        block=block,
        seed=seed,
        products={GATE: found, up: found},
        input_of={GATE: GATE, up: GATE},
        grams={GATE: sums.gram},
    )


def test_what_is_written_is_read(tmp_path, moe):
    sums, x = measured()
    imatrix.write(tmp_path / "i.gguf", contents(sums))
    with Importance(tmp_path / "i.gguf") as importance, Model(moe) as model:
        assert (importance.block, importance.seed) == (128, 5)
        for name in (GATE, GATE.replace("gate", "up")):
            weight = model.tensors[name]
            found = importance.statistics(weight)
            assert found.counts.tolist() == [4, 4, 4, 0]
            assert np.allclose(found.largest[:3], np.abs(x).max(axis=1))
            table, unseen = importance.of(weight)
            assert unseen == [3]
            assert np.allclose(table[:3], (x**2).mean(axis=1), rtol=1e-5)
            for expert in range(3):
                wanted = x[expert].T @ x[expert] / 4
                assert np.allclose(importance.gram(weight, expert), wanted, rtol=1e-4, atol=1e-5)
            assert not importance.gram(weight, 3).any()
        assert importance.statistics(model.tensors["blk.0.attn_q.weight"]) is None


def test_importance_in_a_rotation_is_measured_or_follows_from_the_gram(tmp_path, moe):
    sums, x = measured()
    imatrix.write(tmp_path / "i.gguf", contents(sums))
    with Importance(tmp_path / "i.gguf") as importance, Model(moe) as model:
        weight = model.tensors[GATE]
        for block, seed in ((128, 5), (64, 5), (128, 6)):  # only the first was measured
            table, unseen = importance.of(weight, block, seed)
            assert unseen == [3]
            for expert in range(3):
                turned = rotation.rotate(x[expert], block, seed)
                assert np.allclose(table[expert], (turned**2).mean(axis=0), rtol=1e-4)


def test_a_rotation_it_cannot_know(tmp_path, moe):
    sums, _ = measured()
    given = contents(sums)
    given.grams = {}
    imatrix.write(tmp_path / "i.gguf", given)
    with Importance(tmp_path / "i.gguf") as importance, Model(moe) as model:
        with pytest.raises(OctetError, match="block 64"):
            importance.of(model.tensors[GATE], 64, 5)


def test_llama_cpp_finds_what_it_looks_for_and_nothing_else(tmp_path):
    sums, _ = measured()
    imatrix.write(tmp_path / "i.gguf", contents(sums))
    values, tensors = read(tmp_path / "i.gguf")
    assert values["general.type"][1] == "imatrix"
    assert values["imatrix.datasets"][1] == ["a.txt"]
    assert (values["imatrix.chunk_count"][1], values["imatrix.chunk_size"][1]) == (3, 512)
    # llama.cpp pairs the names that end like this; one without its other half is an error there.
    ends = {end: {n[: -len(end)] for n in tensors if n.endswith(end)} for end in PAIR}
    assert ends[".in_sum2"] == ends[".counts"] == {GATE, GATE.replace("gate", "up")}
    assert tensors[f"{GATE}.in_sum2"].shape.tolist() == [256, 4]
    assert tensors[f"{GATE}.counts"].shape.tolist() == [1, 4]
    assert {t.tensor_type.name for t in tensors.values()} == {"F32"}


def test_heads_counted_together(tmp_path, moe):
    """A product per head has all heads in one row of llama.cpp's matrices, and one count."""
    sums = np.arange(1, 1025, dtype=np.float32).reshape(1, 1024)
    table, unseen = of(write(tmp_path / "i.gguf", sums, [2]), moe)
    assert unseen == []
    assert np.allclose(table, sums.reshape(4, 256) / 2)

import gguf
import numpy as np
import pytest
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.imatrix import Importance
from llama_octet.gguf_tools.reader import Model

GATE = "blk.0.ffn_gate_exps.weight"


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

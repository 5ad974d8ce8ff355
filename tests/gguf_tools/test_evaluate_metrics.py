"""KL, perplexity and answers against values worked out by hand."""

import math

import numpy as np
import pytest
from llama_octet.gguf_tools.errors import OctetError
from llama_octet.gguf_tools.evaluate import metrics


def logits(*rows) -> np.ndarray:
    return np.array(rows, np.float32)


def probabilities(*rows) -> np.ndarray:
    return np.log(np.array(rows)).astype(np.float32)


def test_kl_of_two_coins():
    found = metrics.compare(probabilities([0.5, 0.5]), probabilities([0.25, 0.75]), [0])
    assert found.kl[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-7)
    assert found.control_loss[0] == pytest.approx(math.log(2), abs=1e-7)
    assert found.candidate_loss[0] == pytest.approx(math.log(4), abs=1e-7)
    # Both halves are likeliest in the control; the first counts, and the candidate has the other.
    assert not found.same_top[0]


def test_kl_is_of_the_control_against_the_candidate():
    p, q = probabilities([0.9, 0.1]), probabilities([0.5, 0.5])
    forward = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    backward = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)
    assert metrics.compare(p, q, [0]).kl[0] == pytest.approx(forward, abs=1e-7)
    assert metrics.compare(q, p, [0]).kl[0] == pytest.approx(backward, abs=1e-7)


def test_a_constant_added_to_all_logits_changes_nothing():
    p = logits([1, 2, 3, 400])
    found = metrics.compare(p, p + 1000, [2])
    assert found.kl[0] == 0
    assert found.same_top[0]


def test_equal_logits_give_exactly_zero():
    rng = np.random.default_rng(0)
    p = (rng.standard_normal((20, 5000)) * 30).astype(np.float32)
    p[3, 7] = -np.inf
    found = metrics.compare(p, p.copy(), rng.integers(8, 5000, 20))
    assert (found.kl == 0).all()
    assert found.same_top.all()
    assert metrics.perplexity_ratio(found) == 1


def test_small_differences_are_not_lost():
    # For nearly equal distributions KL is half the variance of the difference of the logits.
    rng = np.random.default_rng(1)
    p = rng.standard_normal((1, 4096)).astype(np.float32)
    noise = (rng.standard_normal((1, 4096)) * 1e-4).astype(np.float32)
    q = p + noise
    exact = q.astype(np.float64) - p
    weight = np.exp(p.astype(np.float64))
    weight /= weight.sum()
    variance = (weight * exact**2).sum() - (weight * exact).sum() ** 2
    assert metrics.compare(p, q, [0]).kl[0] == pytest.approx(variance / 2, rel=1e-3)


def test_tokens_without_any_chance():
    p = logits([0, 0, -np.inf])
    even = metrics.compare(p, logits([0, 0, -1e30]), [0])
    assert even.kl[0] == 0
    q = logits([0, -np.inf, 0])
    assert metrics.compare(p, q, [0]).kl[0] == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite(bad):
    with pytest.raises(OctetError, match="not finite"):
        metrics.compare(logits([0, 1, 2]), logits([0, bad, 2]), [0])


def test_unknown_targets_have_no_loss():
    p = logits([0, 1], [0, 1])
    found = metrics.compare(p, p, [metrics.UNKNOWN, 1])
    assert np.isnan(found.control_loss[0])
    assert not np.isnan(found.control_loss[1])
    assert metrics.perplexity_ratio(metrics.compare(p, p, [metrics.UNKNOWN] * 2)) is None


def test_perplexity_ratio():
    # Losses log 2, log 2 against log 4, log 2: the mean rises by log 2 / 2.
    p = probabilities([0.5, 0.5], [0.5, 0.5])
    q = probabilities([0.25, 0.75], [0.5, 0.5])
    found = metrics.compare(p, q, [0, 0])
    assert metrics.perplexity_ratio(found) == pytest.approx(math.sqrt(2), abs=1e-7)


def test_parts_are_joined_in_order():
    p = probabilities([0.5, 0.5], [0.9, 0.1])
    q = probabilities([0.9, 0.1], [0.5, 0.5])
    whole = metrics.compare(p, q, [0, 1])
    parts = [metrics.compare(p[i : i + 1], q[i : i + 1], [i]) for i in range(2)]
    joined = metrics.joined(parts)
    assert (joined.kl == whole.kl).all()
    assert (joined.same_top == whole.same_top).all()
    assert len(metrics.joined([]).kl) == 0


def test_spread():
    found = metrics.spread(np.arange(101.0))
    assert found == {"mean": 50, "median": 50, "p95": 95, "p99": 99, "max": 100}
    assert metrics.spread(np.array([])) is None


def test_choice_is_among_the_options():
    assert metrics.choice(np.array([9, 1, 3, 2]), [1, 2, 3]) == 1
    assert metrics.choice(np.array([0, 5, 5]), [1, 2]) == 0


def test_answers():
    #            right right wrong wrong wrong wrong
    labels = [0, 1, 2, 3, 0, 1]
    control = [0, 1, 0, 0, 1, 2]
    candidate = [0, 2, 2, 1, 1, 1]
    # kept, right→wrong, wrong→right, wrong→another wrong, wrong kept, wrong→right
    found = metrics.answers(control, candidate, labels)
    low, high = found.pop("flips_interval")
    assert 0 <= low < 3 < high <= 6
    assert found == {
        "sign_test_p": 1,  # one against two says nothing
        "n": 6,
        "accuracy": 3 / 6,
        "answer_changes": 4,
        "flips": 3,
        "correct_to_incorrect": 1,
        "incorrect_to_correct": 2,
        "wrong_to_wrong": 1,
    }


def test_the_controls_own_answers():
    found = metrics.answers([0, 1, 2], [0, 1, 2], [0, 0, 2])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["answer_changes"] == found["flips"] == found["wrong_to_wrong"] == 0


def test_the_interval_of_a_mean_holds_the_mean_in_95_of_100():
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(200):
        low, high = metrics.interval(rng.exponential(size=640), run=1)
        hits += low <= 1 <= high
    assert 180 <= hits <= 199  # 190 ± 3 standard deviations of 3.1, and never all
    assert metrics.interval(np.zeros(5)) == [0, 0]
    assert metrics.interval(np.zeros(0)) is None


def test_values_that_hang_together_make_the_interval_wider():
    values = np.repeat(np.random.default_rng(5).standard_normal(40), 32)
    apart, together = (metrics.interval(values, run=run) for run in (1, 32))
    # 40 independent values instead of 1280: √32 times as wide.
    assert (together[1] - together[0]) / (apart[1] - apart[0]) == pytest.approx(32**0.5, rel=0.25)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(0, 0, 1), (1, 0, 1), (5, 0, 2 / 32), (0, 5, 2 / 32), (3, 3, 1), (6, 1, 16 / 128)],
)
def test_the_sign_test_counts_the_ways_it_could_come_out(wins, losses, p):
    assert metrics.sign_test(wins, losses) == p


def test_divergence_by_position():
    found = metrics.by_position([2, 2], [np.array([1.0, 2, 3, 4]), np.array([3.0, 4])], bins=2)
    assert found == [[2.5, 2.5], [4.5, 3.5]]
    assert metrics.by_position([], []) == []


def test_a_comparison_comes_back_from_its_table():
    some = metrics.Comparison(
        np.array([0.5, 0]), np.array([True, False]), np.array([1, np.nan]), np.array([2.0, 3])
    )
    back = metrics.Comparison.of_table(np.frombuffer(some.table().tobytes()))
    assert back.kl.tolist() == [0.5, 0] and back.same_top.tolist() == [True, False]
    assert math.isnan(back.control_loss[1]) and back.part(1, 2).candidate_loss.tolist() == [3]

"""Processes that reduce their statistics against one process that holds all rows; and none ever waits in vain."""

import os
import pickle
import re
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import distributed_jobs as made  # noqa: E402
from networks import mlp  # noqa: E402

from gem_ood import GEM, MSP  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.gaussians import collect  # noqa: E402
from gem_ood.torch import ODIN, OODModel, distributed  # noqa: E402

#: Seconds that the processes may take on a busy machine; a group gives up a hang after 60 of them.
PATIENCE = 150.0

#: What rounding may change in a sum of a thousand rows, relative to its scale.
ROUNDING = 1e-12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where three processes have written what came of their jobs, in a group of two and in a group of three."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "ranks"
    deadline = time.monotonic() + PATIENCE
    try:
        folder.mkdir()
    except FileExistsError:  # another worker of this test run has started them: once is dear enough
        while not (folder / "done").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return folder
    ranks = torch.multiprocessing.spawn(made.run, (folder,), nprocs=3, join=False)
    try:
        while not ranks.join(timeout=1.0):
            assert time.monotonic() < deadline, "the ranks wait for each other"
    finally:
        for process in ranks.processes:
            process.kill()
        (folder / "done").touch()
    return folder


def outcomes_by_job(folder, n_ranks):
    by_rank = [pickle.loads((folder / f"rank-{rank}-of-{n_ranks}.pickle").read_bytes()) for rank in range(n_ranks)]
    return {name: [outcomes[name] for outcomes in by_rank] for name in by_rank[0]}


@pytest.fixture(scope="module")
def two(folder):
    return outcomes_by_job(folder, 2)


@pytest.fixture(scope="module")
def three(folder):
    return outcomes_by_job(folder, 3)


def assert_same_bits(first, second):
    assert first.classes.dtype == second.classes.dtype
    assert (first.resolution, first.is_labelled) == (second.resolution, second.is_labelled)
    for name in ("classes", "counts", "means", "scatter"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def assert_equals_one_process(reduced, features, labels=None, classes=None):
    """The same on every rank, and equal to one process within rounding of each entry's own scale."""
    whole = collect(features, labels, classes=classes)
    for other in reduced[1:]:
        assert_same_bits(reduced[0], other)
    statistics = reduced[0]
    assert statistics.classes.dtype == whole.classes.dtype
    assert statistics.classes.tolist() == whole.classes.tolist()
    assert statistics.counts.dtype == np.int64
    assert statistics.counts.tolist() == whole.counts.tolist()
    assert (statistics.resolution, statistics.is_labelled) == (whole.resolution, whole.is_labelled)
    np.testing.assert_allclose(statistics.means, whole.means, rtol=4 * np.finfo(float).eps, atol=ROUNDING)
    spread = np.sqrt(np.diag(whole.scatter))
    np.testing.assert_allclose(
        statistics.scatter / np.outer(spread, spread), whole.scatter / np.outer(spread, spread), rtol=0, atol=ROUNDING
    )
    np.testing.assert_array_equal(statistics.scatter, statistics.scatter.T)


@pytest.mark.parametrize("case", made.CASES)
def test_two_ranks_with_parts_of_the_rows_equal_one_with_all(two, case):
    assert_equals_one_process(two[case], *made.rows(**made.CASES[case][0]))


def test_the_reduced_scatter_is_that_of_a_textbook_loop_in_extended_precision(two):
    features, labels = made.rows(offset=1e4)
    wide = features.astype(np.longdouble)
    means = np.array([wide[labels == name].mean(axis=0) for name in range(made.N_CLASSES)])
    centred = wide - means[labels]
    expected = (centred.T @ centred).astype(float)
    spread = np.sqrt(np.diag(expected))
    reduced = two["far from zero"][0]
    np.testing.assert_allclose(reduced.means, means.astype(float), rtol=4 * np.finfo(float).eps)
    np.testing.assert_allclose(
        reduced.scatter / np.outer(spread, spread), expected / np.outer(spread, spread), atol=1e-11
    )


def test_a_class_may_be_missing_on_one_rank(two):
    features, labels = made.rows()
    kept = (labels != 2) | (np.arange(made.N_ROWS) < made.N_ROWS // 2)
    assert_equals_one_process(two["a class missing on one rank"], features[kept], labels[kept])


def test_a_class_of_one_rank_alone_keeps_its_mean_to_the_bit(two):
    features, labels = made.rows()
    is_first = np.arange(made.N_ROWS) < made.N_ROWS // 2
    kept = np.where(is_first, labels // 2 == 0, labels // 2 == 1)
    assert_equals_one_process(two["classes apart"], features[kept], labels[kept])
    alone = collect(features[kept & is_first], labels[kept & is_first])
    np.testing.assert_array_equal(two["classes apart"][0].means[:2], alone.means)


def test_classes_named_by_strings_are_joined_by_name(two):
    features, labels = made.rows()
    is_first = np.arange(made.N_ROWS) < made.N_ROWS // 2
    kept = np.where(is_first, labels != 3, labels != 0)
    assert_equals_one_process(two["strings"], features[kept], made.NAMES[labels[kept]])


def test_rows_without_labels_are_one_class(two):
    assert_equals_one_process(two["without labels"], made.rows()[0])


def test_a_declared_class_without_rows_stays_declared(two):
    assert_equals_one_process(two["declared without rows"], *made.rows(), classes=[0, 1, 2, 3, 9, 10])
    assert not two["declared without rows"][0].means[4:].any()


def test_a_rank_without_rows_takes_part(two, three):
    features, labels = made.rows()
    second = slice(made.N_ROWS // 2, None)
    assert_equals_one_process(two["no rows on one rank"], features[second], labels[second], classes=[0, 1, 2, 3, 7])
    assert_equals_one_process(three["nothing on one rank"], *made.rows(offset=1e4))


def test_ranks_that_all_lack_rows_keep_their_declared_classes(two):
    first, second = two["no rows at all"]
    assert_same_bits(first, second)
    assert first.classes.tolist() == ["a", "b"]
    assert first.counts.tolist() == [0, 0]
    assert first.scatter.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_three_ranks_add_up_to_the_same_bits(three):
    assert_equals_one_process(three["thirds"], *made.rows(offset=1e4))


@pytest.mark.parametrize("name", ["a constant", "a constant of a class that the first rank lacks"])
def test_a_feature_that_is_constant_on_all_ranks_stays_so_to_the_bit(three, name):
    for reduced in three[name]:
        assert reduced.counts.sum() == 8
        assert (reduced.means[reduced.counts > 0] == made.CONSTANT).all()
        assert not reduced.scatter.any()


def test_the_coarsest_resolution_counts_and_the_fourth_moment_is_dropped_as_in_merge(two):
    first, second = two["two resolutions"]
    assert_same_bits(first, second)
    assert first.resolution == np.finfo(np.float32).eps
    assert all(reduced.fourth_moment is None for reduced in two["fourth moment"])


def test_a_fit_of_reduced_statistics_scores_and_calibrates_as_one_process(two):
    features, labels = made.rows()
    half = made.N_ROWS // 2
    calibration = np.vstack([features[:100], features[half : half + 150]])
    whole = GEM().fit(features, labels).calibrate(calibration)
    first, second = two["fit"]
    np.testing.assert_allclose(first.score_samples(features), whole.score_samples(features), rtol=1e-9)
    np.testing.assert_array_equal(first.score_samples(features), second.score_samples(features))
    assert first.offset_ == second.offset_
    assert first.offset_ == pytest.approx(whole.offset_, rel=1e-9)
    assert first.threshold_.n_rows == 250


def test_a_second_pass_on_each_rank_gives_ledoit_wolf(two):
    features, labels = made.rows()
    whole = GEM(covariance="ledoit-wolf").fit(features, labels)
    first, second = two["ledoit-wolf"]
    assert whole.gaussians_.shrinkage > 0.0
    assert first.gaussians_.shrinkage == pytest.approx(whole.gaussians_.shrinkage, rel=1e-9)
    np.testing.assert_allclose(first.score_samples(features), whole.score_samples(features), rtol=1e-9)
    np.testing.assert_array_equal(first.score_samples(features), second.score_samples(features))


def test_scores_are_gathered_in_the_order_of_ranks(two, three):
    expected = {
        "scores": [3.0, -np.inf, 1.0, 7.5],
        "float32 scores of a tensor": [0.5, 1.5],
        "scores on one rank": [2.0, 1.0],
        "no scores": [],
        "still in step": [0.0, 1.0],
    }
    for name, scores in expected.items():
        for gathered in two[name]:
            assert gathered.dtype == np.float64
            assert gathered.tolist() == scores
    assert [gathered.tolist() for gathered in three["scores"]] == [[0.0, 0.0, 1.0]] * 3
    assert [gathered.tolist() for gathered in three["still in step"]] == [[0.0, 1.0, 2.0]] * 3


DISAGREEMENTS = {
    "nothing": "every rank passed None, so there are no statistics to reduce; give rows to at least one rank",
    "width": "rank 0 has 6 features but rank 1 has 5 features; collect the same features on every rank",
    "labelled or not": "rank 0 has no labels but rank 1 has labels; pass labels on every rank or on none; a rank "
    "without any row can pass None",
    "kinds of name": "rank 0 has strings as class names but rank 1 has whole numbers as class names; use whole numbers "
    "only or strings only",
    "no statistics": "rank 1 failed: statistics is of type ndarray; pass gem_ood.gaussians.Statistics, or None for no "
    "rows; mend it there and start all ranks again",
    "damaged statistics": "rank 1 failed: statistics.scatter row 0, column 0 is NaN; every value must be finite: "
    "collect again; mend it there and start all ranks again",
    "overflow": "features are so large that their squares overflow float64; rescale the features",
    "bad scores": "rank 1 failed: scores row 1 is NaN; remove or mend that row; mend it there and start all ranks "
    "again",
    "scores of two dimensions": "rank 1 failed: scores must have one dimension but has shape (1, 1); pass one score "
    "per row; mend it there and start all ranks again",
    "other order": "rank 0 called all_reduce but rank 1 called gather_scores; call the same functions in the same "
    "order on every rank",
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_a_disagreement_is_the_same_error_on_every_rank(two, name):
    assert [type(error) for error in two[name]] == [InputError, InputError]
    assert [str(error) for error in two[name]] == [DISAGREEMENTS[name]] * 2


def test_a_disagreement_names_the_ranks_that_hold_rows(three):
    for error in three["widths of two"]:
        assert str(error).startswith("rank 1 has 1 features but rank 2 has 2 features")
    assert all("every rank passed None" in str(error) for error in three["none of three"])


def test_a_failed_rank_raises_its_own_error_and_the_others_hear_of_it(two):
    assert two["no failure"] == [None, None]
    heard, own = two["one failure"]
    assert isinstance(heard, InputError)
    assert str(heard) == "rank 1 failed: KeyError: 'features'; mend it there and start all ranks again"
    assert isinstance(own, KeyError)
    assert [str(error) for error in two["two failures"]] == ["lost\nthe disk of 0", "lost\nthe disk of 1"]
    heard, own = two["failure while the other reduces"]
    assert str(heard) == "rank 1 failed: OSError: no such file; mend it there and start all ranks again"
    assert isinstance(own, OSError)


def test_work_done_together_succeeds_on_all_ranks_or_fails_on_all(two):
    assert two["work that succeeds"] == [0.0, 6.0]
    heard, own = two["work that fails on one rank"]
    assert str(heard).startswith("rank 1 failed: ZeroDivisionError: float division by zero; ")
    assert isinstance(own, ZeroDivisionError)


def test_ranks_hold_the_same_bits_even_if_each_rounds_its_sums_otherwise(two):
    first, second = two["another order of adding"]
    assert_same_bits(first, second)
    assert_equals_one_process([first, second], *made.rows())


# Guards


@pytest.fixture(scope="module")
def guard():
    """What one process makes of all inputs."""
    return OODModel(mlp(), GEM()).fit(made.guard_batches(seed=1)).calibrate(made.guard_batches(seed=2)).detector


@pytest.mark.parametrize("case", [*(f"guard, {name}" for name in made.GUARD_CUTS), "guard of a synchronized model"])
def test_a_guard_of_two_ranks_is_that_of_one_process(two, guard, case):
    first, second = two[case]
    assert_same_bits(first.statistics_, second.statistics_)
    np.testing.assert_array_equal(first.calibration_scores_, second.calibration_scores_)
    assert first.threshold_ == second.threshold_
    assert first.statistics_.n_rows == 400
    np.testing.assert_allclose(first.gaussians_.covariance, guard.gaussians_.covariance, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(first.calibration_scores_, guard.calibration_scores_, rtol=1e-8)
    np.testing.assert_allclose(first.offset_, guard.offset_, rtol=1e-8)


@pytest.mark.parametrize(
    ("case", "make_guard"),
    [
        ("guard of logits", lambda: OODModel(mlp(), MSP())),
        ("guard of logits, with fit", lambda: OODModel(mlp(), MSP())),
        ("guard with noise", lambda: ODIN(mlp(), noise=0.1)),
    ],
    ids=["calibrated", "fitted", "noise"],
)
def test_a_rank_without_rows_scores_and_stores_like_the_other(two, case, make_guard):
    whole = make_guard().calibrate(made.guard_batches(seed=2))
    expected = whole.verdicts(made.guard_batches(seed=2))
    for threshold, scores, verdicts in two[case]:
        assert threshold == whole.detector.threshold_
        np.testing.assert_array_equal(scores, whole.score_samples(made.guard_batches(0, 20, seed=1)))
        np.testing.assert_array_equal(verdicts.p_value, expected.p_value)
        np.testing.assert_array_equal(verdicts.is_ood, expected.is_ood)


def test_a_synchronized_model_is_run_by_the_ranks_that_have_rows(two):
    whole = OODModel(mlp(), MSP()).calibrate(made.guard_batches(seed=2)).detector
    assert [detector.threshold_ for detector in two["guard of logits of a synchronized model"]] == [
        whole.threshold_
    ] * 2


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("NaN in fit", r"batch 3 of the loader \(counted from 0\): .* is NaN"),
        ("NaN in calibrate", r"batch 3 of the loader \(counted from 0\): .* is NaN"),
        ("guard, no loader on one rank", "loader is a int; pass a DataLoader"),
    ],
)
def test_what_one_rank_cannot_read_is_raised_on_both(two, case, message):
    heard, own = two[case]
    assert isinstance(heard, InputError)
    assert isinstance(own, InputError)
    assert re.match(f"rank 1 failed: {message}", str(heard))
    assert re.match(message, str(own))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("guard of logits, no rows at all", "the loader of every rank yielded no batch; give rows to at least one"),
        ("guard of logits, no rows to calibrate", "the loader of every rank yielded no batch; give rows to at least"),
        ("guard of two rates", "the ranks set different thresholds from the same scores; pass the same tpr"),
        ("guard by a second pass", "needs a second pass about the means of all ranks"),
        ("guard of two widths", "rank 0 has rows of 3 columns but rank 1 of 4; guard the same model on every rank"),
    ],
)
def test_what_no_guard_can_be_made_of_is_told_on_both_ranks(two, case, message):
    for error in two[case]:
        assert isinstance(error, InputError)
        assert message in str(error)


# Groups


def test_a_group_of_some_ranks_leaves_the_others_out(three):
    features, labels = made.rows(offset=1e4)
    kept = np.arange(made.N_ROWS) % 3 != 1
    first, left_out, second = three["outer"]
    assert_equals_one_process([first, second], features[kept], labels[kept])
    assert [three["outer scores"][rank].tolist() for rank in (0, 2)] == [[0.0, 2.0]] * 2
    assert str(three["outer failure"][0]) == "rank 2 failed: ValueError: bad; mend it there and start all ranks again"
    for error in (left_out, three["outer scores"][1], three["outer failure"][1]):
        assert isinstance(error, InputError)
        assert "not a member of the group" in str(error)


def test_without_a_process_group_the_error_names_the_remedy():
    for call in (
        lambda: distributed.all_reduce(None),
        lambda: distributed.gather_scores([1.0]),
        lambda: distributed.agree(None),
    ):
        with pytest.raises(
            InputError, match=r"no process group; call torch.distributed.init_process_group .* torchrun"
        ):
            call()
    with pytest.raises(KeyError, match="mine"):
        distributed.agree(KeyError("mine"))


@pytest.mark.parametrize(
    ("backends", "device"),
    [("cuda:nccl", "cuda"), ("cpu:gloo,cuda:gloo", "cpu"), ("cpu:gloo,cuda:nccl", "cpu"), ("xpu:xccl", "xpu")],
)
def test_tensors_are_where_the_backend_takes_them(monkeypatch, backends, device):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: backends)
    assert distributed._device(None).type == device


def test_two_ranks_with_real_features_fit_as_one_process(cifar10, two):
    train, test = cifar10["train"], cifar10["test"]["features"].astype(np.float64)
    first, second = two["real features"]
    assert_same_bits(first, second)
    whole = GEM().fit(train["features"], train["labels"])
    reduced = GEM().fit_statistics(first)
    np.testing.assert_allclose(reduced.gaussians_.covariance, whole.gaussians_.covariance, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(reduced.score_samples(test), whole.score_samples(test), rtol=1e-9)

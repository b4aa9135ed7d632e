"""Judges: ties are kept in every precision, and the slack of a score covers what a network's rounding does to it."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import blob_batches, mlp  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood import GEM, MSP, Energy, Mahalanobis, MaxLogit  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments import normalize_images  # noqa: E402
from gem_ood.thresholds import RankedScores  # noqa: E402
from gem_ood.torch import OODModel, judging, scorers  # noqa: E402
from gem_ood.torch.ensembles import SCORES, Ensemble, MCDropout  # noqa: E402
from gem_ood.torch.judging import Judge  # noqa: E402
from gem_ood.torch.rounding import NOISE_ROUNDING, noise_rounding  # noqa: E402

DTYPES = [torch.float64, torch.float32]


def logits(scores):
    """Return rows whose largest logit is the score."""
    return torch.tensor(scores, dtype=torch.float64)[:, None]


def judge_of(scores, *, tpr=0.5, dtype=torch.float64):
    """Return a judge of largest logits whose calibration scores are exactly these."""
    detector = MaxLogit().fit(np.zeros((2, 1)))
    detector.calibrate_scores(scores, tpr=tpr)
    detector.calibration_scores_ = np.sort(np.asarray(scores, dtype=np.float64))
    detector.offset_ = float(detector.calibration_scores_[1])
    return Judge(detector, n_columns=1, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_that_equals_a_calibration_score_or_the_threshold_is_kept(dtype):
    scores = [0.1, 0.2, 0.3, 0.3, 0.7]
    judge = judge_of(scores, dtype=dtype)
    found, p_values, is_ood, _ = judge(logits([0.05, 0.1, 0.2, 0.3, 0.7, 0.8]))
    assert found.dtype == p_values.dtype == dtype
    assert torch.equal(p_values, torch.tensor([1, 2, 3, 5, 6, 6], dtype=dtype) / 6)
    assert is_ood.tolist() == [True, True, False, False, False, False]


def test_one_step_below_a_tie_is_no_tie():
    below = np.nextafter([0.2, 0.3], -np.inf)
    _, p_values, is_ood, _ = judge_of([0.1, 0.2, 0.3, 0.3, 0.7])(logits(below))
    assert torch.equal(p_values, torch.tensor([2, 3], dtype=torch.float64) / 6)
    assert is_ood.tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_stand_for_the_rows_between_the_values(dtype):
    detector = MaxLogit().fit(np.zeros((2, 1)))
    detector.calibrate_ranked(RankedScores(np.array([0.0, 0.25, 4.0]), np.array([1, 4, 9]), 9), tpr=0.6)
    judge = Judge(detector, n_columns=1, dtype=dtype)
    _, p_values, is_ood, _ = judge(logits([-1.0, 0.0, 0.2, 0.25, 3.9, 4.0]))
    assert torch.equal(p_values, torch.tensor([1, 4, 4, 9, 9, 10], dtype=dtype) / 10)
    assert is_ood.tolist() == [True, True, True, False, False, False]
    assert judge.half().ranks.dtype == torch.int64
    detector.calibrate_scores([0.0, 1.0, 2.0], tpr=0.5)
    assert not judge.is_of(detector, torch.device("cpu"))


@pytest.fixture
def without_float64(monkeypatch):
    """Every device is taken for one that lacks float64, as Apple's do."""
    monkeypatch.setattr(scorers, "precise", lambda place: torch.float32)
    monkeypatch.setattr(judging, "precise", lambda place: torch.float32)


def narrow_scores():
    generator = np.random.default_rng(0)
    return np.sort(np.concatenate([generator.normal(size=40), 1e3 * generator.normal(size=40), [0.0, -np.inf]]))


@pytest.mark.usefixtures("without_float64")
def test_a_device_without_float64_has_its_threshold_and_calibration_scores_rounded_down():
    scores = narrow_scores()
    judge = judge_of(scores).to("cpu")
    assert judge.threshold.dtype == judge.calibration.dtype == torch.float32
    assert (judge.calibration.double().numpy() <= scores).all()
    finite = np.isfinite(scores)
    np.testing.assert_allclose(judge.calibration.numpy()[finite], scores[finite], rtol=1e-6)
    found, p_values, is_ood, _ = judge(logits(scores[finite]))
    assert found.dtype == torch.float32
    assert (p_values.numpy() >= np.arange(2, len(scores) + 1).astype(np.float32) / np.float32(len(scores) + 1)).all()
    assert not is_ood.any()


def test_the_numbers_of_a_scorer_stay_in_float64_where_the_device_lacks_it(monkeypatch):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 3)) + 1e6  # in float32, these would lose what tells rows apart
    detector = GEM().fit(features, np.arange(60) % 2).calibrate(features)
    expected = detector.score_samples(features)
    monkeypatch.setattr(scorers, "precise", lambda place: torch.float32)
    monkeypatch.setattr(judging, "precise", lambda place: torch.float32)
    judge = Judge(detector, n_columns=3).to("cpu")
    assert {buffer.dtype for buffer in judge.scorer.buffers()} == {torch.float64}
    found, _, is_ood, _ = judge(torch.tensor(features))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert is_ood.sum() <= 3


def test_float32_scorers_that_lose_nothing_go_along():
    fn_devices = []

    def fake(tensor):
        fn_devices.append(tensor.dtype)
        return tensor.to("meta")

    assert judging._in_own_precision(fake, torch.zeros(2, dtype=torch.float32)).device.type == "meta"
    assert judging._in_own_precision(fake, torch.zeros(2, dtype=torch.int64)).device.type == "meta"
    assert judging._in_own_precision(fake, torch.zeros(2, dtype=torch.float64)).device.type == "meta"
    assert torch.float64 not in fn_devices  # such a tensor cannot even be made on some devices


def test_what_a_device_without_float64_cannot_hold_stays_on_the_processor(monkeypatch):
    monkeypatch.setattr(judging, "precise", lambda place: torch.float32 if place.type == "meta" else torch.float64)
    kept = judging._in_own_precision(lambda tensor: tensor.to("meta"), torch.ones(2, dtype=torch.float64))
    assert (kept.device.type, kept.dtype) == ("cpu", torch.float64)
    judge = judge_of(narrow_scores()).to("meta")
    assert (judge.threshold.device.type, judge.threshold.dtype) == ("meta", torch.float32)
    assert judge.labels.device.type == "meta"


def test_a_judge_that_comes_back_from_such_a_device_has_its_precision_again(monkeypatch):
    scores = narrow_scores()
    with monkeypatch.context() as patched:
        patched.setattr(judging, "precise", lambda place: torch.float32)
        judge = judge_of(scores).to("cpu")
    judge.to("cpu")
    assert judge.threshold.dtype == judge.calibration.dtype == torch.float64
    assert not judge(logits(scores[1:]))[2].any()


# Rounding


def test_the_slack_of_a_row_does_not_depend_on_its_batch():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 5, generator=generator) * torch.logspace(-3, 3, 30)[:, None]
    judge = Judge(Energy().fit(np.zeros((2, 5))), n_columns=5)
    together = judge.rounding(rows)
    assert (together.dtype, together.shape, together.requires_grad) == (torch.float64, (30,), False)
    assert torch.equal(torch.cat([judge.rounding(row[None]) for row in rows]), together)
    assert judge.rounding(rows[:0]).shape == (0,)


def test_the_slack_of_a_largest_logit_is_that_of_the_largest_entry():
    rows = torch.tensor([[1.0, -8.0, 0.0], [2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    share = 2.0 * 32.0 * 2.0**-23  # margin · steps · the step of float32
    expected = share * torch.tensor([8.0, 2.0, 0.0], dtype=torch.float64)
    judge = Judge(MaxLogit().fit(np.zeros((2, 3))), n_columns=3)
    torch.testing.assert_close(judge.rounding(rows), expected, rtol=1e-6, atol=0.0)
    for dtype, step in ((torch.float16, 2.0**-10), (torch.bfloat16, 2.0**-7)):
        narrow = 2.0 * 2.0 * step * torch.tensor([8.0, 2.0], dtype=torch.float64)
        torch.testing.assert_close(judge.rounding(rows[:2].to(dtype)), narrow, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("n_columns", [2, 3, 10, 64, 100])
def test_the_difference_of_any_two_columns_is_moved(n_columns):
    judge = Judge(MSP().fit(np.zeros((2, n_columns))), n_columns=n_columns)
    for one, other in ((0, 1), (0, n_columns - 1), (n_columns // 2, n_columns - 1)):
        if one != other:
            row = torch.full((1, n_columns), -30.0)
            row[0, [one, other]] = 30.0
            # p = ½ moves by ¼ of the difference of two entries, each of which moves by the same step.
            expected = 2.0 * 0.25 * 2.0 * 32.0 * 2.0**-23 * 30.0
            assert float(judge.rounding(row)) == pytest.approx(expected, rel=1e-3)


def test_an_infinite_score_has_no_slack():
    detector = GEM().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    judge = Judge(detector, n_columns=1)
    rows = torch.tensor([[1e300], [1.0]], dtype=torch.float64)
    assert judge.scorer(rows)[0] == -torch.inf
    assert judge.rounding(rows)[0] == 0.0
    assert judge.rounding(rows)[1] > 0.0


def test_the_slack_of_input_noise_is_a_share_of_the_middle_half():
    scores = np.array([-np.inf, 0.0, 1.0, 2.0, 3.0, 4.0])
    assert noise_rounding(scores) == pytest.approx(NOISE_ROUNDING * 2.0)
    assert noise_rounding(np.array([-np.inf])) == noise_rounding(np.empty(0)) == 0.0


DETECTORS = {
    "msp": MSP(),
    "msp at a high temperature": MSP(temperature=1000.0),
    "energy": Energy(),
    "max-logit": MaxLogit(),
    "gem": GEM(),
    "mahalanobis": Mahalanobis(),
    "gem of unit length": GEM(normalize=True),
}


@pytest.fixture(scope="module")
def real_rows(resnet56_weights, cifar10_images):
    """Features and logits of 100 real images from a real network, in one batch and one by one."""
    from gem_ood.experiments import CifarResNet

    network = CifarResNet.load(resnet56_weights).eval()
    images = normalize_images(cifar10_images["cifar10_test"]["images"][:100])
    guards = {"features": OODModel(network, GEM()), "logits": OODModel(network, MSP())}
    found = {}
    for name, guarded in guards.items():
        together, alone = [images], list(images.split(1))
        found[name] = [torch.tensor(guarded.features(batches, progress=False)[0]) for batches in (together, alone)]
    return found


@pytest.mark.parametrize("name", DETECTORS)
def test_a_real_network_moves_no_score_further_than_its_slack(name, real_rows, cifar10):
    detector = DETECTORS[name]
    together, alone = real_rows["logits" if detector.reads_logits else "features"]
    assert not torch.equal(together, alone)
    train = cifar10["train"]
    detector.fit(train["features"], train["labels"]) if not detector.reads_logits else detector.fit(together.numpy())
    judge = Judge(detector, n_columns=together.shape[1])
    scores, slack = judge.scorer(together), judge.rounding(together)
    moved = (judge.scorer(alone) - scores).abs()
    assert moved.max() > 0.0
    assert (moved <= slack).all()
    assert slack.max() < 1e-3 * scores.std()


# Several members


def perturbed(model, share, *, seed=0):
    """Return a copy whose weights differ by this share."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for weight in other.parameters():
        weight.data.mul_(1.0 + share * torch.randn(weight.shape, generator=generator))
    return other


def wide_network(*, seed=0, gain=10.0):
    """Return a float32 classifier whose logits are as large as this makes them."""
    torch.manual_seed(seed)
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    layers[-1].weight.data.mul_(gain)
    return nn.Sequential(*layers)


COMMITTEES = {
    "two apart": lambda score: Ensemble([wide_network(), wide_network(seed=1)], score=score),
    "two alike": lambda score: Ensemble([wide_network(), perturbed(wide_network(), 1e-3)], score=score),
    "large logits": lambda score: Ensemble([wide_network(gain=100.0), wide_network(seed=1, gain=100.0)], score=score),
    "dropout": lambda score: MCDropout(wide_network(), n_passes=5, score=score),
}


def assert_moves_within_slack(guarded, inputs):
    """Return scores and their slack, after comparing those of one batch with those of each input alone."""
    readings = guarded._readings([inputs], "calibrate", None, False, to_score=True)
    scores, slack, _ = guarded._calibration_scores(readings, may_be_empty=False)
    moved = np.abs(guarded.score_samples(inputs.split(1), progress=False) - scores)
    assert moved.max() > 0.0
    assert (moved <= np.maximum(slack, guarded.detector._slack(scores))).all()
    return scores, slack


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", COMMITTEES)
def test_members_move_no_score_further_than_its_slack(name, score):
    inputs = 3.0 * torch.randn(100, 64, generator=torch.Generator().manual_seed(1))
    assert_moves_within_slack(COMMITTEES[name](score), inputs)


@pytest.mark.parametrize("score", SCORES)
def test_real_members_move_no_score_further_than_its_slack(score, resnet56, cifar10_images):
    images = normalize_images(cifar10_images["cifar10_test"]["images"][:100])
    scores, slack = assert_moves_within_slack(Ensemble([resnet56, perturbed(resnet56, 0.01)], score=score), images)
    assert slack.max() < 0.01 * scores.std()


@pytest.mark.parametrize("score", ["msp", "entropy"])
def test_the_slack_of_members_in_half_precision_is_that_of_their_own_rounding(score):
    inputs = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    slack = []
    for dtype in (torch.float32, torch.float16):
        guarded = Ensemble([wide_network().to(dtype), wide_network(seed=1).to(dtype)], score=score)
        readings = guarded._readings([inputs.to(dtype)], "calibrate", None, False, to_score=True)
        slack.append(guarded._calibration_scores(readings, may_be_empty=False).rounding)
    # 2 steps of 2⁻¹⁰ against 32 of 2⁻²³
    np.testing.assert_allclose(slack[1] / slack[0], 512.0, rtol=0.2)


def test_a_graph_in_half_precision_that_rounds_otherwise_is_refused_with_its_remedy(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    batches = [(inputs.half(), labels) for inputs, labels in blob_batches()]
    guarded = OODModel(mlp().half(), MSP()).fit(batches).calibrate(batches)
    with pytest.raises(InputError, match=r"half precision, which rounds by about 1e-3 .*: pass tolerance=0\.01"):
        guarded.export_onnx(tmp_path / "guard.onnx", tolerance=1e-9)

"""Scorers against the arrays' own scores: the same numbers, differentiable, in every option of every detector."""

import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import NearestMean  # noqa: E402
from numpy.testing import assert_allclose  # noqa: E402
from sklearn.base import clone  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gem_ood import GEM, MSP, Energy, Head, Mahalanobis, MaxLogit, RelativeMahalanobis  # noqa: E402
from gem_ood.detectors import make  # noqa: E402
from gem_ood.detectors.gaussian_base import GaussianDetector  # noqa: E402
from gem_ood.errors import InputError, NotFittedError, RankWarning  # noqa: E402
from gem_ood.torch import Scorer, scorer  # noqa: E402
from gem_ood.torch.scorers import ArrayScorer, GaussianScorer, LogitScorer  # noqa: E402

#: What the two may differ in, relative to the score or to one.
FLOAT64, FLOAT32 = 1e-12, 1e-5

HEAD = Head(np.random.default_rng(0).normal(size=(3, 5)), [0.1, -0.2, 0.3])
GAUSSIAN = {
    "gem": GEM(),
    "gem, empirical priors": GEM(priors="empirical"),
    "gem, given priors": GEM(priors=[0.2, 0.3, 0.5]),
    "gem, a class without weight": GEM(priors=[0.5, 0.0, 0.5]),
    "gem, oas": GEM(covariance="oas"),
    "gem, ledoit-wolf": GEM(covariance="ledoit-wolf"),
    "gem, shrunk": GEM(covariance=0.3),
    "gem, normalised": GEM(normalize=True),
    "gem, relative": GEM(relative=True),
    "gem, all options": GEM(relative=True, normalize=True, covariance="oas", priors="empirical"),
    "mahalanobis": Mahalanobis(),
    "relative mahalanobis": RelativeMahalanobis(),
    "relative mahalanobis, normalised": RelativeMahalanobis(normalize=True, covariance="oas"),
    "mahalanobis, shrunk and normalised": Mahalanobis(covariance=0.1, normalize=True),
}
LOGIT = {
    "msp": MSP(),
    "msp, tempered": MSP(temperature=1000.0),
    "msp, head": MSP(head=HEAD, temperature=2.0),
    "max-logit": MaxLogit(),
    "max-logit, head": MaxLogit(head=HEAD),
    "energy": Energy(),
    "energy, cool": Energy(temperature=0.25),
    "energy, head": Energy(head=HEAD, temperature=3.0),
}


@pytest.fixture(params=GAUSSIAN | LOGIT)
def detector(request, blobs):
    """A fitted detector; the third class has one row fewer, so priors are uneven."""
    features, labels, *_ = blobs
    return clone((GAUSSIAN | LOGIT)[request.param]).fit(features[:500], labels[:500])


@pytest.fixture
def rows(blobs):
    """Rows in the distribution and far from it."""
    return np.concatenate([blobs[2][:60], blobs[3][:20], np.zeros((1, 5)), 1e6 * blobs[2][:5]])


def relative_gap(found, expected):
    return np.max(np.abs(found - expected) / np.maximum(np.abs(expected), 1.0))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, FLOAT64), (torch.float32, FLOAT32)], ids=str)
def test_scores_and_nearest_classes_are_those_of_the_arrays(detector, rows, dtype, limit):
    module = scorer(detector, dtype=dtype)
    scores, nearest = module.score_and_nearest(torch.tensor(rows))
    assert scores.dtype == dtype
    assert relative_gap(scores.double().numpy(), detector.score_samples(rows)) <= limit
    names = detector._class_names(rows.shape[1])[nearest.numpy()]
    np.testing.assert_array_equal(names, detector.verdicts(rows).nearest_class)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_narrow_rows_are_scored_as_the_numbers_that_they_are(detector, blobs, dtype):
    narrow = torch.tensor(blobs[2][:20]).to(dtype)
    found = scorer(detector)(narrow)
    assert found.dtype == torch.float64
    assert relative_gap(found.numpy(), detector.score_samples(narrow.double().numpy())) <= FLOAT64


def test_the_score_is_differentiable(detector, blobs):
    rows = torch.tensor(blobs[2][:4], requires_grad=True)
    assert torch.autograd.gradcheck(scorer(detector), (rows,))


def test_what_rises_with_the_score_is_differentiable_and_keeps_its_order(detector, blobs):
    rows = torch.tensor(blobs[2][:40])
    module = scorer(detector)
    assert torch.autograd.gradcheck(module.ascent, (rows[:3].clone().requires_grad_(),))
    order = module(rows).argsort(stable=True)
    assert (module.ascent(rows)[order].diff() >= -1e-9).all()


def test_a_sure_prediction_still_has_a_direction_to_move_in():
    rows = torch.tensor([[30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(scorer(MSP()).ascent(rows).sum(), rows)
    assert_allclose(gradient.numpy().ravel() / gradient.abs().max().item(), [1.0, -1.0], rtol=1e-9)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_rows_beyond_float64_are_infinitely_far_as_in_the_arrays(name, blobs):
    detector = clone(GAUSSIAN[name]).fit(blobs[0], blobs[1])
    far = np.array([[1e200, 0, 0, 0, 0], [-1e200] * 5, [0, 0, 1e308, 0, -1e308]])
    scores, nearest = scorer(detector).score_and_nearest(torch.tensor(far))
    expected = detector.verdicts(far)
    assert_allclose(scores.numpy(), expected.score, rtol=FLOAT64)
    np.testing.assert_array_equal(detector.classes_[nearest.numpy()], expected.nearest_class)
    if not detector.normalize:
        assert (scores == -math.inf).all()


@pytest.mark.parametrize("name", GAUSSIAN | LOGIT)
def test_a_row_with_nan_or_infinity_is_never_in_the_distribution(name, blobs):
    module = scorer(clone((GAUSSIAN | LOGIT)[name]).fit(blobs[0], blobs[1]))
    rows = torch.tensor(blobs[2][:4])
    rows[0, 1], rows[1, 2] = math.nan, math.inf
    assert not (module(rows)[:2] > -math.inf).any()
    assert torch.isfinite(module(rows)[2:]).all()


def test_a_singular_covariance_is_scored_in_the_directions_that_it_has(blobs):
    features = np.concatenate([blobs[0], blobs[0][:, :2]], axis=1)
    with pytest.warns(RankWarning):
        detector = GEM().fit(features, blobs[1])
    assert detector.gaussians_.rank == 5
    assert relative_gap(scorer(detector)(torch.tensor(features)).numpy(), detector.score_samples(features)) <= 1e-11


def test_one_gaussian_without_labels_has_one_class(blobs):
    detector = GEM().fit(blobs[0])
    scores, nearest = scorer(detector).score_and_nearest(torch.tensor(blobs[2]))
    assert relative_gap(scores.numpy(), detector.score_samples(blobs[2])) <= FLOAT64
    assert not nearest.any()


@pytest.mark.parametrize("distance", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("kind", [GEM(), GEM(relative=True), Mahalanobis()], ids=str)
def test_float32_scores_are_right_however_far_apart_the_classes_are(distance, kind):
    generator = np.random.default_rng(5)
    labels = np.arange(2000) % 4
    features = generator.normal(size=(2000, 40)) + distance * generator.normal(size=(4, 40))[labels]
    detector = clone(kind).fit(features, labels)
    found = scorer(detector, dtype=torch.float32)(torch.tensor(features[:300]))
    assert relative_gap(found.double().numpy(), detector.score_samples(features[:300])) <= FLOAT32


def test_float32_is_computed_in_float32_where_nothing_is_lost_by_it():
    rows = np.random.default_rng(5).normal(size=(500, 40))
    detector = Mahalanobis().fit(rows)
    assert scorer(detector, dtype=torch.float32).gaussians.whitener.dtype == torch.float32
    assert scorer(detector).gaussians.whitener.dtype == torch.float64


def test_autocast_does_not_round_what_is_computed_in_float32():
    rows = np.random.default_rng(5).normal(size=(500, 40))
    module, some = scorer(Mahalanobis().fit(rows), dtype=torch.float32), torch.tensor(rows[:50], dtype=torch.float32)
    expected = module(some)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(some), expected)


def test_real_features_are_scored_alike(cifar10):
    train, test = cifar10["train"], cifar10["test"]["features"][:2000]
    for detector in (GEM(), GEM(relative=True), GEM(normalize=True), Mahalanobis()):
        detector.fit(train["features"].astype(np.float64), train["labels"])
        expected = detector.score_samples(test.astype(np.float64))
        assert relative_gap(scorer(detector)(torch.tensor(test)).numpy(), expected) <= FLOAT64
        narrow = scorer(detector, dtype=torch.float32)(torch.tensor(test))
        assert relative_gap(narrow.double().numpy(), expected) <= FLOAT32


def test_autocast_does_not_round_scores(detector, blobs):
    rows, module = torch.tensor(blobs[2][:10], dtype=torch.float32), scorer(detector, dtype=torch.float32)
    expected, rising = module(rows), module.ascent(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(rows), expected)
        assert torch.equal(module.ascent(rows), rising)


class UsedOperations(TorchDispatchMode):
    """Collects the names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_only_products_sums_one_look_up_and_elementwise_steps_are_used(detector, blobs):
    module, rows = scorer(detector), torch.tensor(blobs[2][:4])
    with UsedOperations() as used:
        module(rows)
    products, sums = {"mm", "permute"}, {"logsumexp", "_log_softmax", "sum", "max", "amax", "argmax"}
    elementwise = {
        "bitwise_and",
        "sub",
        "rsub",
        "add",
        "mul",
        "div",
        "exp",
        "abs",
        "sqrt",
        "clamp",
        "lt",
        "gt",
        "where",
        "scalar_tensor",
    }
    look_up = {"index", "unsqueeze"}
    assert used.names <= products | sums | look_up | elementwise


def test_buffers_are_no_part_of_a_state_dict(detector):
    assert dict(scorer(detector).state_dict()) == {}


class HalvedGEM(GEM):
    """A score of a user's own on the fit of another."""

    def _gaussian_scores(self, features, nearest):
        return 0.5 * super()._gaussian_scores(features, nearest)


class SmallestLogit(MaxLogit):
    def _logit_scores(self, logits):
        return logits.min(axis=1)


@pytest.mark.parametrize("kind", [NearestMean, HalvedGEM, SmallestLogit])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_detector_of_ones_own_is_scored_by_its_own_arrays(kind, dtype, blobs):
    detector = kind().fit(blobs[0], blobs[1])
    module = scorer(detector, dtype=dtype)
    assert isinstance(module, ArrayScorer)
    assert not module.is_differentiable
    scores, nearest = module.score_and_nearest(torch.tensor(blobs[2]))
    assert scores.dtype == dtype
    assert_allclose(scores.double(), detector.score_samples(blobs[2]), rtol=1e-12 if dtype == torch.float64 else 1e-6)
    np.testing.assert_array_equal(detector.classes_[nearest], detector.verdicts(blobs[2]).nearest_class)


MODULES = ("gem", "mahalanobis", "relative-mahalanobis", "msp", "max-logit", "energy")


def test_these_detectors_have_a_module_of_their_own(blobs):
    for name in MODULES:
        detector = make(name).fit(blobs[0], blobs[1])
        assert scorer(detector).is_differentiable, name


def test_kinds_are_chosen_by_what_the_detector_is(blobs):
    assert isinstance(scorer(GEM().fit(blobs[0])), GaussianScorer)
    assert isinstance(scorer(Energy()), LogitScorer)
    assert isinstance(scorer(Energy()), Scorer)


@pytest.mark.parametrize("kind", [GEM, Mahalanobis, NearestMean])
def test_an_unfitted_detector_has_no_scorer(kind):
    with pytest.raises(NotFittedError, match=f"this {kind.__name__} is not fitted yet; call fit"):
        scorer(kind())


@pytest.mark.parametrize("kind", [MSP, MaxLogit, Energy])
def test_a_score_of_logits_needs_no_fit(kind):
    logits = np.random.default_rng(0).normal(size=(7, 4))
    assert relative_gap(scorer(kind())(torch.tensor(logits)).numpy(), kind().score_samples(logits)) <= FLOAT64


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: scorer("gem"), r"detector is a str; pass a detector such as GEM\(\)"),
        (lambda: scorer(MSP(temperature=-1.0)), "temperature is -1.0"),
        (lambda: scorer(MSP(), dtype=torch.float16), "dtype is torch.float16; pass torch.float64 or torch.float32"),
        (lambda: scorer(GEM().fit(np.eye(5)[[0, 1, 2, 3, 4, 0]] * 2.0))(torch.zeros(2, 4)), r"shape \(2, 4\) .* 5"),
        (lambda: scorer(MSP(head=HEAD))(torch.zeros(2, 4)), r"shape \(2, 4\) but this scorer takes rows × 5"),
        (lambda: scorer(Energy())(np.zeros((2, 4))), r"rows is a ndarray; pass a tensor: torch\.from_numpy\(rows\)"),
        (lambda: scorer(Energy()).ascent([[0.0]]), r"rows is a list; pass a tensor: torch\.tensor\(rows\)"),
        (lambda: scorer(Energy())(torch.zeros(4)), r"shape \(4,\) but this scorer takes rows × columns"),
    ],
    ids=[
        "not a detector",
        "bad option",
        "bad precision",
        "wrong width",
        "wrong width for a head",
        "an array",
        "a list",
        "one row",
    ],
)
def test_bad_input_is_refused_in_one_line(attempt, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        with pytest.raises(InputError, match=message) as caught:
            attempt()
    assert "\n" not in str(caught.value)


def test_a_gaussian_detector_of_ones_own_is_never_taken_for_gem():
    assert issubclass(HalvedGEM, GaussianDetector)
    rows = np.random.default_rng(0).normal(size=(30, 2))
    halved, whole = HalvedGEM().fit(rows), GEM().fit(rows)
    assert_allclose(scorer(halved)(torch.tensor(rows)), 0.5 * scorer(whole)(torch.tensor(rows)), rtol=1e-9, atol=1e-12)

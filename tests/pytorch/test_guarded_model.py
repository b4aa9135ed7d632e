"""OODModel: the same verdicts as the detector gives on extracted features."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import (  # noqa: E402
    NearestMean,
    as_detector,
    assert_same_results,
    blob_batches,
    blob_loader,
    blobs,
    extracted,
    features_of,
    mlp,
    once,
)
from numpy.testing import assert_allclose  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood import GEM, MSP, Energy, Head, Mahalanobis, MaxLogit  # noqa: E402
from gem_ood.detectors import make  # noqa: E402
from gem_ood.errors import CalibrationSizeError, InputError, NotCalibratedError, NotFittedError  # noqa: E402
from gem_ood.torch import ODIN, OODModel, OODResult, streaming  # noqa: E402
from gem_ood.torch.rounding import noise_rounding  # noqa: E402

TRAIN, HELD_OUT = blob_batches(300, seed=1), blob_batches(200, seed=2)
INPUTS = blobs(30, seed=3)[0]
FAR = torch.full((4, 4), 200.0)


@pytest.fixture
def model():
    return mlp()


@pytest.fixture
def guarded(model):
    return OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)


def test_verdicts_are_those_of_the_detector_on_extracted_features(guarded, model):
    detector = as_detector(model, TRAIN, HELD_OUT)
    inputs = torch.cat([INPUTS, FAR])
    out, expected = guarded(inputs), detector.verdicts(features_of(model, inputs).numpy())
    assert torch.equal(out.logits, model.eval()(inputs))
    assert_allclose(out.score.detach(), expected.score, rtol=1e-9)
    assert_allclose(out.p_value, expected.p_value, rtol=1e-12)
    np.testing.assert_array_equal(out.is_ood, expected.is_ood)
    np.testing.assert_array_equal(out.nearest_class, expected.nearest_class)
    assert out.is_ood[-4:].all()
    assert not out.is_ood.all()
    assert (out.score.dtype, out.p_value.dtype) == (torch.float64, torch.float64)
    assert (out.is_ood.dtype, out.nearest_class.dtype) == (torch.bool, torch.int64)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_fitting_over_a_loader_equals_fitting_to_the_extracted_features(model, size):
    inputs, labels = blobs(200, seed=4)
    batches = list(zip(inputs.split(size), labels.split(size), strict=True))
    found = OODModel(model, GEM()).fit(batches).detector.gaussians_
    expected = GEM().fit(features_of(model, inputs).numpy(), labels.numpy()).gaussians_
    assert_allclose(found.class_means, expected.class_means, rtol=1e-5, atol=1e-6)
    assert_allclose(found.covariance, expected.covariance, rtol=1e-4, atol=1e-6)


def test_many_rows_are_fitted_in_more_than_one_group(model, monkeypatch):
    sizes = []

    class Recording(GEM):
        def _collect(self, batches, *options):
            sized = [(rows, labels, sizes.append(len(rows))) for rows, labels in batches]
            return super()._collect([pair[:2] for pair in sized], *options)

    whole = OODModel(model, Recording()).fit(TRAIN).detector
    monkeypatch.setattr(streaming, "ROWS_PER_GROUP", 60)
    grouped = OODModel(model, Recording()).fit(TRAIN).detector
    assert sizes == [300, 100, 100, 100]
    rows = features_of(model, INPUTS).numpy()
    assert_allclose(grouped.score_samples(rows), whole.score_samples(rows), rtol=1e-9)


@pytest.mark.parametrize("name", ["gem", "mahalanobis", "msp", "max-logit", "energy"])
def test_every_detector_of_the_core_works_through_it(model, name):
    guarded = OODModel(model, make(name)).fit(TRAIN).calibrate(HELD_OUT, tpr=0.9)
    out = guarded(INPUTS)
    rows = out.logits.detach() if guarded.detector.reads_logits else features_of(model, INPUTS)
    expected = guarded.detector.verdicts(rows.numpy())
    assert_allclose(out.score.detach(), expected.score, rtol=1e-9)
    assert_allclose(out.p_value, expected.p_value)
    np.testing.assert_array_equal(out.is_ood, expected.is_ood)
    np.testing.assert_array_equal(out.nearest_class, expected.nearest_class)
    assert guarded.detector.threshold_.tpr == 0.9


@pytest.mark.parametrize("kind", [MSP, MaxLogit, Energy])
def test_a_score_of_logits_needs_no_fit_and_may_read_features_through_a_head(model, kind):
    last = model[-1]
    head = Head(last.weight.detach().numpy(), last.bias.detach().numpy())
    plain, headed = OODModel(model, kind()), OODModel(model, kind(head=head))
    for guarded in (plain, headed):
        assert guarded(INPUTS).is_ood is None
        guarded.calibrate(HELD_OUT)
    assert_allclose(plain(INPUTS).score.detach(), headed(INPUTS).score.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(plain(INPUTS).nearest_class, plain(INPUTS).logits.argmax(1))


def test_a_detector_of_ones_own_works_through_it(model):
    guarded = OODModel(model, NearestMean()).fit(TRAIN).calibrate(HELD_OUT)
    rows = features_of(model, INPUTS).numpy()
    out = guarded(INPUTS)
    assert_allclose(out.score, guarded.detector.score_samples(rows))
    np.testing.assert_array_equal(out.is_ood, guarded.detector.is_ood(rows))
    narrow = OODModel(model, guarded.detector, dtype=torch.float32)(INPUTS)
    assert (narrow.score.dtype, narrow.p_value.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(narrow.p_value.double(), out.p_value, rtol=1e-6, atol=0.0)


def test_before_calibration_there_is_a_score_but_no_verdict(model):
    out = OODModel(model, GEM()).fit(TRAIN)(INPUTS)
    assert out.p_value is None
    assert out.is_ood is None
    assert out.score.shape == out.nearest_class.shape == (30,)


def test_before_fitting_there_is_nothing(model):
    guarded = OODModel(model, GEM())
    for attempt in (lambda: guarded(INPUTS), lambda: guarded.calibrate(HELD_OUT), lambda: guarded.verdicts(HELD_OUT)):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            attempt()
    with pytest.raises(NotCalibratedError, match="no threshold yet"):
        OODModel(model, GEM()).fit(TRAIN).calibrate(tpr=0.9)


def test_a_detector_fitted_on_arrays_guards_the_model(model, guarded):
    assert_same_results(OODModel(model, as_detector(model, TRAIN, HELD_OUT))(INPUTS), guarded(INPUTS))


def test_classes_with_names_are_told_by_their_place_and_named_in_verdicts(model):
    features, labels = extracted(model, TRAIN)
    detector = GEM().fit(features, np.array(["cat", "dog", "eel"])[labels])
    guarded = OODModel(model, detector)
    expected = detector.verdicts(features_of(model, INPUTS).numpy()).nearest_class
    np.testing.assert_array_equal(detector.classes_[guarded(INPUTS).nearest_class], expected)
    np.testing.assert_array_equal(guarded.verdicts([INPUTS]).nearest_class, expected)


@pytest.mark.parametrize(
    ("names", "classes"),
    [(["cat", "dog", "eel"], ["ant", "cat", "cow", "dog", "eel"]), ([1, 3, 4], [0, 1, 2, 3, 4])],
    ids=["strings", "numbers"],
)
def test_a_declared_class_without_rows_does_not_shift_the_others(model, names, classes):
    named = [(inputs, np.array(names)[labels]) for inputs, labels in TRAIN]
    guarded = OODModel(model, GEM()).fit(named, classes=classes)
    np.testing.assert_array_equal(guarded.detector.classes_, classes)
    expected = guarded.detector.verdicts(features_of(model, INPUTS).numpy()).nearest_class
    np.testing.assert_array_equal(guarded.detector.classes_[guarded(INPUTS).nearest_class], expected)


def test_one_gaussian_may_be_fitted_without_labels(model):
    bare = [inputs for inputs, _ in TRAIN]
    expected = GEM().fit(extracted(model, TRAIN)[0]).score_samples(features_of(model, INPUTS).numpy())
    for loader in (bare, TRAIN):
        guarded = OODModel(model, GEM()).fit(loader, one_class=True)
        assert_allclose(guarded(INPUTS).score.detach(), expected, rtol=1e-4)
        assert len(guarded.detector.classes_) == 1


def test_whole_loaders_agree_with_forward(guarded):
    batches = [INPUTS[:7], INPUTS[7:]]
    parts = [guarded(part) for part in batches]
    out = OODResult(*map(torch.cat, zip(*parts, strict=True)))
    assert_allclose(guarded.score_samples(batches), out.score.detach(), rtol=1e-9)
    verdicts = guarded.verdicts(batches)
    assert_allclose(verdicts.score, out.score.detach(), rtol=1e-9)
    assert_allclose(verdicts.p_value, out.p_value)
    np.testing.assert_array_equal(verdicts.is_ood, out.is_ood)
    np.testing.assert_array_equal(verdicts.nearest_class, out.nearest_class)
    features, labels = guarded.features(HELD_OUT)
    assert_allclose(features, extracted(guarded.model, HELD_OUT)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(labels, extracted(guarded.model, HELD_OUT)[1])
    assert guarded.features(batches)[1] is None


def test_thresholds_move_without_a_second_pass(guarded):
    strict = guarded.detector.offset_
    guarded.calibrate(tpr=0.5)
    assert guarded.detector.offset_ > strict
    assert_allclose(guarded(INPUTS).is_ood, guarded(INPUTS).score.detach() < guarded.detector.offset_)
    guarded.calibrate(HELD_OUT, tpr=0.8, confidence=0.9)
    assert guarded.detector.threshold_.confidence == 0.9
    with pytest.raises(CalibrationSizeError):
        guarded.calibrate([INPUTS[:3]], tpr=0.99)
    assert guarded.detector.threshold_.confidence == 0.9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [GEM(), GEM(relative=True), Mahalanobis(), MSP(), Energy()], ids=str)
def test_rows_that_tie_with_calibration_rows_never_fall_out_of_it(model, dtype, kind):
    train = [(inputs.double(), labels) for inputs, labels in TRAIN]
    guarded = OODModel(model.double(), copy.deepcopy(kind), dtype=dtype).fit(train)
    same = torch.cat([INPUTS[:1].double()] * 40)
    guarded.calibrate(same.split(7))
    for size in (1, 3, 40):
        for part in same.split(size):
            assert not guarded(part).is_ood.any()
            assert (guarded(part).p_value == 1.0).all()


@pytest.mark.parametrize("kind", [MSP(), MaxLogit(), Energy()], ids=str)
def test_rounding_to_float32_never_makes_a_calibration_row_fall_out(model, kind):
    logits = model.eval()(INPUTS).detach().numpy()
    detector = copy.deepcopy(kind).fit(logits).calibrate(np.repeat(logits[:1], 20, axis=0))
    guarded = OODModel(model, detector, dtype=torch.float32)
    score = guarded(INPUTS[:1]).score.detach()
    below = score.nextafter(torch.tensor(-torch.inf))
    assert score - 1e-6 * score.abs() < guarded._judge.threshold < below


class OtherOrder(nn.Module):
    """A classifier whose sums are added up in another order for one row than for many, as fast kernels do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(256, 256), nn.Linear(256, 5)

    def forward(self, inputs):
        order = torch.arange(256).flip(0) if len(inputs) == 1 else torch.arange(256)
        hidden = torch.zeros(len(inputs), 256)
        for columns in order.split(16):
            hidden = hidden + inputs[:, columns] @ self.hidden.weight[:, columns].T
        return self.head((hidden + self.hidden.bias + 10.0).relu())  # far from zero, where rounding is coarse


@pytest.mark.parametrize("kind", [MSP(), GEM(), Energy()], ids=str)
def test_rounding_of_the_network_never_makes_a_calibration_row_fall_out(kind):
    rows = torch.randn(800, 256, generator=torch.Generator().manual_seed(0))
    train, held_out = (rows[:600], torch.arange(600) % 5), rows[600:]
    guarded = OODModel(OtherOrder(), copy.deepcopy(kind)).fit([train]).calibrate([held_out])
    alone, ordered = np.sort(guarded.score_samples(held_out.split(1))), np.sort(guarded.score_samples([held_out]))
    slack = guarded.detector._slack(ordered)
    assert (alone < ordered - slack).any()  # or this network would show nothing
    assert (alone >= guarded.detector.calibration_scores_).all()
    spread = np.subtract(*np.quantile(ordered, [0.75, 0.25]))
    assert_allclose(guarded.detector.calibration_scores_, ordered, atol=0.05 * spread, rtol=0.0)


def test_a_sign_of_the_noise_that_turns_is_allowed_for(model):
    guarded = OODModel(model, Energy(), input_noise=0.1).calibrate(HELD_OUT)
    scores = guarded.score_samples(HELD_OUT)
    drops = np.sort(scores) - guarded.detector.calibration_scores_
    allowed = noise_rounding(scores)
    assert (drops > allowed * (1.0 - 1e-9)).all()
    assert (drops < 2.0 * allowed).all()


@pytest.mark.parametrize("make_guard", [lambda: OODModel(mlp(), MSP()), lambda: ODIN(mlp())], ids=["MSP", "ODIN"])
def test_a_threshold_from_scores_alone_survives_scoring(make_guard):
    guarded = make_guard()
    threshold = guarded.detector.calibrate_scores(np.linspace(0.3, 0.9, 100)).threshold_
    guarded.score_samples([INPUTS])
    assert guarded.detector.threshold_ is threshold
    assert guarded(INPUTS).is_ood is not None


def test_a_calibration_that_fails_leaves_a_score_of_logits_as_it_was(model):
    guarded = OODModel(model, MSP(tpr=0.99))
    guarded.detector.calibrate_scores(np.linspace(0.3, 0.9, 100))
    before = guarded.detector.__dict__.copy()
    with pytest.raises(InputError, match="is NaN"):
        guarded.calibrate([INPUTS, torch.full((5, 4), torch.nan)])
    with pytest.raises(CalibrationSizeError):
        guarded.calibrate([INPUTS])
    assert guarded.detector.__dict__ == before


def test_another_kind_of_detector_cannot_be_slipped_in(guarded):
    guarded.detector = MSP()
    with pytest.raises(InputError, match="a MSP of logits cannot replace one of features; make the guard with a MSP"):
        guarded(INPUTS)


def test_a_model_without_parameters_is_guarded():
    class Sums(nn.Module):
        def forward(self, inputs):
            return inputs.cumsum(1)[:, 1:]

    guarded = OODModel(Sums(), GEM(), lambda logits: logits).fit(TRAIN).calibrate(HELD_OUT)
    assert_allclose(guarded(INPUTS).score, guarded.detector.score_samples(INPUTS.cumsum(1)[:, 1:].numpy()), rtol=1e-9)


def test_no_input_gets_no_answer(guarded):
    out = guarded(INPUTS[:0])
    assert [len(part) for part in out] == [0] * 5
    with_none = [*TRAIN, (INPUTS[:0], torch.zeros(0, dtype=torch.int64))]
    assert OODModel(mlp(), GEM()).fit(with_none).detector.statistics_.n_rows == 300


def test_what_happens_to_the_detector_outside_is_seen(guarded, model):
    first = guarded(INPUTS)
    guarded.detector.calibrate(tpr=0.5)
    assert guarded(INPUTS).is_ood.sum() > first.is_ood.sum()
    guarded.detector.partial_fit(*extracted(model, HELD_OUT))
    changed = guarded(INPUTS)
    assert changed.p_value is None
    assert_allclose(changed.score.detach(), guarded.detector.score_samples(features_of(model, INPUTS).numpy()))
    assert not torch.equal(changed.score, first.score)


def test_a_score_of_logits_reads_one_batch_to_fit():
    taken = []
    OODModel(mlp(), MSP()).fit(taken.append(place) or batch for place, batch in enumerate(TRAIN))
    assert taken == [0]


# Second passes


def test_a_second_pass_may_come_in_another_order(model):
    loader = blob_loader(300, 64, shuffle=True, seed=5)
    found = OODModel(model, GEM(covariance="ledoit-wolf", relative=True)).fit(loader).detector
    inputs, labels = blobs(300, seed=5)
    expected = GEM(covariance="ledoit-wolf", relative=True).fit(features_of(model, inputs).numpy(), labels.numpy())
    assert_allclose(found.gaussians_.shrinkage, expected.gaussians_.shrinkage, rtol=1e-5)
    rows = features_of(model, INPUTS).numpy()
    assert_allclose(found.score_samples(rows), expected.score_samples(rows), rtol=1e-3, atol=1e-3)


def test_a_loader_that_can_be_read_once_serves_one_pass_and_not_two(model):
    OODModel(model, GEM()).fit(once(TRAIN)).calibrate(once(HELD_OUT))
    guarded = OODModel(model, GEM(covariance="ledoit-wolf"))
    with pytest.raises(
        InputError, match="needs a second pass, but the loader can be read only once; pass a DataLoader"
    ):
        guarded.fit(once(TRAIN))

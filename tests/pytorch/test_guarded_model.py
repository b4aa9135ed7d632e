"""OODModel: one pass, the model untouched, and the same verdicts as the detector gives on extracted features."""

import copy
import io
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import (  # noqa: E402
    Counted,
    blob_batches,
    blob_loader,
    blobs,
    features_of,
    hook_counts,
    mlp,
    once,
    training_flags,
)
from numpy.testing import assert_allclose  # noqa: E402
from rich.live import _RefreshThread  # noqa: E402
from test_scorers import NearestMean  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood import GEM, MSP, Energy, Head, Mahalanobis, MaxLogit, progress  # noqa: E402
from gem_ood.detectors import available, make  # noqa: E402
from gem_ood.errors import CalibrationSizeError, InputError, NotCalibratedError, NotFittedError  # noqa: E402
from gem_ood.torch import OODModel, OODResult, streaming  # noqa: E402

TRAIN, HELD_OUT = blob_batches(300, seed=1), blob_batches(200, seed=2)
INPUTS = blobs(30, seed=3)[0]
FAR = torch.full((4, 4), 200.0)

#: Where a graph ends, the compiler looks at `.grad` of tensors that have none, and hides the warning of it.
COMPILER_LOOKS_AT_GRADIENTS = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


@pytest.fixture
def model():
    return mlp()


@pytest.fixture
def guarded(model):
    return OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Compiled code is kept per function, so one test's would be another's."""
    yield
    torch.compiler.reset()


def extracted(model, batches):
    inputs = torch.cat([inputs for inputs, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    return features_of(model, inputs).numpy(), labels.numpy()


def as_detector(model, detector=None, **options):
    """Return a detector fitted and calibrated on features taken out of the model beforehand."""
    detector = GEM() if detector is None else detector
    return detector.fit(*extracted(model, TRAIN)).calibrate(extracted(model, HELD_OUT)[0], **options)


def assert_same_results(found, expected, *, rtol=1e-9):
    assert isinstance(found, OODResult)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.score, expected.score, rtol=rtol, atol=1e-9)
    for name in ("p_value", "is_ood", "nearest_class"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert (mine is None and other is None) or torch.equal(mine, other), name


def assert_same_state(before, after):
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


# Results


def test_verdicts_are_those_of_the_detector_on_extracted_features(guarded, model):
    detector = as_detector(model)
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
        def collect(self, batches, *, classes=None):
            sized = [(rows, labels, sizes.append(len(rows))) for rows, labels in batches]
            return super().collect([pair[:2] for pair in sized], classes=classes)

    whole = OODModel(model, Recording()).fit(TRAIN).detector
    monkeypatch.setattr(streaming, "ROWS_PER_GROUP", 60)
    grouped = OODModel(model, Recording()).fit(TRAIN).detector
    assert sizes == [300, 100, 100, 100]
    rows = features_of(model, INPUTS).numpy()
    assert_allclose(grouped.score_samples(rows), whole.score_samples(rows), rtol=1e-9)


@pytest.mark.parametrize("name", available())
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
    assert_same_results(OODModel(model, as_detector(model))(INPUTS), guarded(INPUTS))


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


# One pass, and the model as it was


def test_the_model_runs_once_per_forward_and_once_per_batch():
    counted = Counted(mlp())
    guarded = OODModel(counted, GEM()).fit(TRAIN)
    assert counted.n_calls == len(TRAIN)
    guarded.calibrate(HELD_OUT)
    assert counted.n_calls == len(TRAIN) + len(HELD_OUT)
    for n_calls in (1, 2):
        guarded(INPUTS)
        assert counted.n_calls == len(TRAIN) + len(HELD_OUT) + n_calls
    counted.n_calls = 0
    guarded.verdicts(HELD_OUT)
    guarded.calibrate(tpr=0.9)
    assert counted.n_calls == len(HELD_OUT)


def test_only_a_covariance_that_needs_it_takes_a_second_pass():
    counted = Counted(mlp())
    OODModel(counted, GEM(covariance="ledoit-wolf")).fit(TRAIN)
    assert counted.n_calls == 2 * len(TRAIN)


def test_the_loader_is_streamed():
    alive = weakref.WeakSet()
    most = 0

    class Tracked:
        def __init__(self, inputs):
            self.inputs = inputs

    def batches():
        nonlocal most
        for place in range(60):
            inputs, labels = blobs(40, seed=place)
            batch = Tracked(inputs)
            alive.add(batch)
            most = max(most, len(alive))
            yield batch, labels

    def unpack(item):
        return item[0].inputs, item[1]

    OODModel(mlp(), GEM()).fit(batches(), unpack=unpack).calibrate(batches(), unpack=unpack)
    assert most <= 3


def test_the_model_is_bit_identical_and_without_hooks_afterwards(model):
    model.train()
    model[1].eval()
    before, flags = copy.deepcopy(model.state_dict()), training_flags(model)
    guarded = OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)
    guarded(INPUTS)
    guarded.verdicts(HELD_OUT)
    assert_same_state(before, model.state_dict())
    assert training_flags(model) == flags
    assert hook_counts(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


class Fails(nn.Module):
    """Passes inputs on, and raises once told to."""

    error: BaseException | None = None

    def forward(self, inputs):
        if self.error is not None:
            raise self.error
        return inputs


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_pass_that_fails_leaves_nothing_behind(error):
    model = nn.Sequential(*mlp()[:5], Fails(), nn.Linear(6, 3)).train()
    guarded = OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)
    expected, threshold = guarded(INPUTS), guarded.detector.threshold_
    flags = training_flags(model)

    def interrupted():
        yield from TRAIN[:2]
        model[5].error = error
        yield from TRAIN[2:]

    for attempt in (
        lambda: guarded.fit(interrupted()),
        lambda: guarded.calibrate(interrupted()),
        lambda: guarded.verdicts(interrupted()),
        lambda: (setattr(model[5], "error", error), guarded(INPUTS)),
    ):
        model[5].error = None
        with pytest.raises(type(error)):
            attempt()
        model[5].error = None
        assert hook_counts(model) == 0
        assert training_flags(model) == flags
        assert guarded.detector.threshold_ is threshold
        assert_same_results(guarded(INPUTS), expected)


def test_a_fit_that_fails_midway_leaves_the_earlier_one(guarded):
    expected, threshold = guarded(INPUTS), guarded.detector.threshold_
    spoiled = [*TRAIN[:3], (torch.full((5, 4), torch.nan), torch.zeros(5))]
    for attempt in (guarded.fit, guarded.calibrate):
        with pytest.raises(InputError, match=r"batch 3 of the loader \(counted from 0\): .* is NaN"):
            attempt(spoiled)
        assert guarded.detector.threshold_ is threshold
        assert_same_results(guarded(INPUTS), expected)


def test_dropout_and_batch_statistics_do_not_disturb_verdicts(guarded, model):
    model.train()
    first, second = guarded(INPUTS), guarded(INPUTS[:5])
    torch.testing.assert_close(first.score[:5], second.score, rtol=1e-6, atol=1e-6)
    assert model.training


# Modes of PyTorch


def test_inference_mode_before_and_gradients_after(guarded):
    expected = guarded(INPUTS)
    with torch.inference_mode():
        fresh = OODModel(guarded.model, copy.deepcopy(guarded.detector))
        assert_same_results(fresh(INPUTS), expected)
        fresh.detector.calibrate(tpr=0.9)
        fresh(INPUTS)
    inputs = INPUTS.clone().requires_grad_()
    fresh(inputs).score.sum().backward()
    assert inputs.grad.abs().sum() > 0.0
    with torch.no_grad():
        assert not guarded(INPUTS).score.requires_grad


def test_autocast_rounds_the_model_but_not_the_judge(guarded):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = guarded(INPUTS)
    assert out.logits.dtype == torch.bfloat16
    assert out.score.dtype == torch.float64
    torch.testing.assert_close(out.score, guarded(INPUTS).score, rtol=0.1, atol=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        OODModel(guarded.model, GEM()).fit(TRAIN).calibrate(HELD_OUT)


@pytest.mark.parametrize(
    ("backend", "detector"),
    [
        ("aot_eager", GEM()),
        ("eager", GEM(normalize=True, relative=True, priors="empirical")),
        ("eager", Mahalanobis()),
        ("eager", Energy()),
    ],
    ids=str,
)
def test_a_compiled_guard_answers_the_same_in_one_graph(model, backend, detector):
    guarded = OODModel(model.train(), copy.deepcopy(detector)).fit(TRAIN).calibrate(HELD_OUT)
    with guarded:
        compiled = torch.compile(guarded, backend=backend, fullgraph=True)
        first = compiled(INPUTS)
        assert_same_results(first, guarded(INPUTS))
        assert first.is_ood is not None
        assert_same_results(compiled(INPUTS[:7]), guarded(INPUTS[:7]))
    assert hook_counts(model) == 0
    assert all(training_flags(model))


@COMPILER_LOOKS_AT_GRADIENTS
def test_a_guard_that_is_not_attached_compiles_around_its_hooks(guarded):
    compiled = torch.compile(guarded, backend="eager")
    assert_same_results(compiled(INPUTS), guarded(INPUTS))
    assert_same_results(compiled(INPUTS[:9]), guarded(INPUTS[:9]))
    assert hook_counts(guarded.model) == 0


def test_a_compiled_guard_sees_a_new_fit_and_a_new_threshold(guarded):
    with guarded:
        compiled = torch.compile(guarded, backend="eager", fullgraph=True)
        before = compiled(INPUTS)
        guarded.calibrate(tpr=0.5)
        assert compiled(INPUTS).is_ood.sum() > before.is_ood.sum()
        guarded.fit(HELD_OUT)
        assert compiled(INPUTS).is_ood is None
        guarded.calibrate(TRAIN)
        assert_same_results(compiled(INPUTS), guarded(INPUTS))


@COMPILER_LOOKS_AT_GRADIENTS
def test_a_compiled_guard_of_a_detector_of_ones_own_answers_the_same(model):
    guarded = OODModel(model, NearestMean()).fit(TRAIN).calibrate(HELD_OUT)
    with guarded:
        assert_same_results(torch.compile(guarded, backend="eager")(INPUTS), guarded(INPUTS))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [GEM, MSP, MaxLogit, Energy])
def test_what_cannot_be_scored_is_refused_by_row_or_out_of_the_distribution(model, kind, value):
    guarded = OODModel(model[-1:], kind()).fit([(torch.randn(60, 6), torch.arange(60) % 3)])
    guarded.calibrate([torch.randn(60, 6)])
    inputs = torch.randn(5, 6)
    inputs[2, 1] = value
    with pytest.raises(InputError, match="the model's features row 2, column"):
        guarded(inputs)
    with guarded:
        out = torch.compile(guarded, backend="eager", fullgraph=True)(inputs)
    assert out.is_ood[2]
    assert out.p_value[2] == out.p_value.min()


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double], ids=["half", "bf16", "double"])
def test_casting_the_model_leaves_the_judges_precision(guarded, cast):
    expected = guarded(INPUTS)
    cast(guarded)
    dtype = next(guarded.model.parameters()).dtype
    out = guarded(INPUTS.to(dtype))
    assert out.logits.dtype == dtype
    assert out.score.dtype == out.p_value.dtype == torch.float64
    torch.testing.assert_close(out.score, expected.score, rtol=0.1, atol=1.0)
    rows = features_of(guarded.model, INPUTS.to(dtype)).double().numpy()
    assert_allclose(out.score.detach(), guarded.detector.score_samples(rows), rtol=1e-9)


def test_the_judge_follows_the_model_to_another_device(guarded):
    guarded(INPUTS)
    guarded.to("meta")
    assert {buffer.device.type for buffer in guarded._judge.buffers()} == {"meta"}
    elsewhere = copy.deepcopy(mlp()).to("meta")
    other = OODModel(elsewhere, as_detector(mlp()))
    assert {buffer.device.type for buffer in other._judge.buffers()} == {"meta"}
    assert other._current_judge(torch.zeros(2, 6)).labels.device.type == "cpu"


def test_a_deep_copy_stands_on_its_own(guarded):
    expected = guarded(INPUTS)
    other = copy.deepcopy(guarded)
    assert_same_results(other(INPUTS), expected)
    other.calibrate(tpr=0.3)
    with torch.no_grad():
        other.model[0].weight.mul_(2.0)
    assert_same_results(guarded(INPUTS), expected)
    assert not torch.equal(other(INPUTS).score, expected.score)


def test_the_whole_guard_can_be_pickled(guarded, tmp_path):
    torch.save(guarded, tmp_path / "guarded.pt")
    loaded = torch.load(tmp_path / "guarded.pt", weights_only=False)
    assert_same_results(loaded(INPUTS), guarded(INPUTS))


@pytest.mark.parametrize("is_attached", [False, True], ids=["hooks per pass", "attached"])
def test_threads_do_not_see_each_other(model, is_attached):
    guarded = OODModel(model.train(), as_detector(model))
    if is_attached:
        guarded.attach()
    parts = [INPUTS[:10], INPUTS[10:15], INPUTS[15:], FAR]
    expected = [guarded(part) for part in parts]
    failures = []

    def work(place):
        try:
            for _ in range(60):
                assert_same_results(guarded(parts[place]), expected[place])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(parts))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    guarded.detach()
    assert hook_counts(model) == 0
    assert all(training_flags(model))


def test_a_wrapped_model_and_a_wrapped_guard_answer_the_same(guarded, model):
    assert_same_results(nn.DataParallel(guarded)(INPUTS), guarded(INPUTS))
    inside = OODModel(nn.DataParallel(model), GEM()).fit(TRAIN).calibrate(HELD_OUT)
    assert_same_results(inside(INPUTS), guarded(INPUTS))
    assert inside.layer == "5"


def test_replicas_of_a_guard_read_their_own_pass(guarded):
    """What DataParallel makes on each device: modules that share the hooks of the first."""
    replicas = {}
    for name, part in guarded.named_modules():
        replicas[name] = part._replicate_for_data_parallel()
    for name, replica in replicas.items():
        for parameter, value in dict(guarded.get_submodule(name).named_parameters(recurse=False)).items():
            setattr(replica, parameter, value.detach().clone())
        for child in guarded.get_submodule(name)._modules:
            full = f"{name}.{child}" if name else child
            if full in replicas:
                replica._modules[child] = replicas[full]
    assert_same_results(replicas[""](INPUTS), guarded(INPUTS))
    assert hook_counts(guarded.model) == 0


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


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "is_wanted"),
    [(Terminal, True), (Terminal, False), (io.StringIO, True)],
    ids=["terminal", "terminal, not wanted", "pipe"],
)
def test_a_bar_appears_on_a_terminal_only(monkeypatch, capsys, stream, is_wanted):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setenv("TERM", "xterm")
    appears = stream is Terminal and is_wanted
    guarded = OODModel(mlp(), GEM()).fit(blob_loader(), progress=is_wanted)
    assert ("fit" in sys.stderr.getvalue()) is appears
    assert ("/300" in sys.stderr.getvalue()) is appears  # the loader tells how many rows there are
    guarded.calibrate(HELD_OUT, progress=is_wanted)
    assert ("calibrate" in sys.stderr.getvalue()) is appears
    assert capsys.readouterr().out == ""


def test_a_fit_that_fails_takes_its_bar_away(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(InputError, match="labels") as caught:
        OODModel(mlp(), GEM()).fit([*blob_batches(2000, 1000), (INPUTS, torch.rand(30))] * 2)
    assert "fit" in sys.stderr.getvalue()
    assert caught.value.__traceback__ is not None  # it holds the frames of the pass, which must not hold the bar
    for thread in threading.enumerate():
        if isinstance(thread, _RefreshThread):
            thread.join(10.0)
            assert not thread.is_alive()


def test_the_library_prints_nothing(model, capfd):
    guarded = OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)
    guarded(INPUTS)
    guarded.verdicts(HELD_OUT)
    assert capfd.readouterr() == ("", "")
    assert "layer='5'" in repr(guarded)


# Bad input


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: OODModel(lambda inputs: inputs, GEM()), r"model is a function; pass a torch\.nn\.Module"),
        (lambda: OODModel(mlp(), "gem"), r"detector is a str; pass a detector such as GEM\(\)"),
        (lambda: OODModel(mlp(), GEM), r"detector is a ABCMeta; pass a detector such as GEM\(\)"),
        (lambda: OODModel(mlp(), GEM(), dtype=torch.float16), "dtype is torch.float16; pass torch.float64"),
        (lambda: OODModel(mlp(), GEM(), input_noise=-1.0), "input_noise is -1.0; pass a number of at least 0"),
        (lambda: OODModel(mlp(width=7), as_detector(mlp()), "5"), "has 7 features in layer '5' but this GEM .* to 6"),
        (lambda: OODModel(mlp(width=7), as_detector(mlp()))(INPUTS), "has 7 features in layer '5' but this GEM .* 6"),
        (lambda: OODModel(mlp(), as_detector(mlp()), "2")(INPUTS), "has 8 features in layer '2' but this GEM .* 6"),
        (lambda: OODModel(mlp(), MSP().fit(np.eye(4)))(INPUTS), "has 3 logits but this MSP was fitted to 4"),
        (lambda: OODModel(mlp(), MSP(head=Head(np.ones((3, 5)))))(INPUTS), "has 6 features .* this MSP .* to 5"),
        (lambda: OODModel(mlp(), GEM(calibration=0.1)).fit(TRAIN), "calibration holds rows back from fit"),
        (lambda: OODModel(mlp(), GEM(covariance="none")).fit(TRAIN), "covariance is 'none'"),
    ],
    ids=[
        "a function for a model",
        "a name for a detector",
        "a class for a detector",
        "half precision",
        "negative noise",
        "wrong width at construction",
        "wrong width at the first pass",
        "wrong width of another layer",
        "wrong number of logits",
        "wrong width of a head",
        "hold-out in fit",
        "unknown covariance",
    ],
)
def test_bad_input_is_refused_in_one_line(attempt, message):
    with pytest.raises(InputError, match=message) as caught:
        attempt()
    assert "\n" not in str(caught.value)


def test_without_pytorch_the_error_has_the_command_and_the_core_works():
    code = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import gem_ood
gem_ood.GEM().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1]).score_samples([[1.0]])
try:
    import gem_ood.torch
except gem_ood.errors.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert 'run pip install "gem-ood[torch]"' in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_score_of_logits_reads_one_batch_to_fit():
    taken = []
    OODModel(mlp(), MSP()).fit(taken.append(place) or batch for place, batch in enumerate(TRAIN))
    assert taken == [0]

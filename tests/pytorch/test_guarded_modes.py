"""OODModel in every mode of PyTorch: one pass, and the model as it was."""

import copy
import pickle
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

from networks import (  # noqa: E402
    Counted,
    NearestMean,
    as_detector,
    assert_same_results,
    blob_batches,
    blobs,
    features_of,
    hook_counts,
    mlp,
    training_flags,
)
from numpy.testing import assert_allclose  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood import GEM, MSP, Energy, Mahalanobis, MaxLogit  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402

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


def assert_same_state(before, after):
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


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


class Network(nn.Module):
    """A forward of its own, whose compiled code all instances share."""

    def __init__(self, *, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(torch.relu(self.body(inputs)))


@COMPILER_LOOKS_AT_GRADIENTS
@pytest.mark.parametrize("order", ["model first", "model of the same class first", "guard first"])
def test_code_that_was_compiled_without_hooks_is_not_taken_for_the_guards(order):
    guarded = OODModel(Network().eval(), GEM()).fit(TRAIN).calibrate(HELD_OUT)
    compiled, expected = torch.compile(guarded, backend="eager"), guarded(INPUTS)
    if order == "guard first":
        assert_same_results(compiled(INPUTS), expected)
    other = Network(seed=1).eval() if order == "model of the same class first" else guarded.model
    torch.compile(other, backend="eager")(INPUTS)
    for _ in range(2):
        assert_same_results(compiled(INPUTS), expected)
    assert hook_counts(guarded.model) == 0


@COMPILER_LOOKS_AT_GRADIENTS
def test_the_model_of_a_guard_that_is_not_attached_runs_uncompiled():
    guarded, codes = OODModel(Network(), GEM()).fit(TRAIN).calibrate(HELD_OUT), []

    def backend(graph, example):
        codes.append(graph.code)
        return graph

    torch.compile(guarded, backend=backend)(INPUTS)
    assert codes
    assert not any("linear" in code for code in codes)
    with guarded:
        torch.compile(guarded, backend=backend)(INPUTS)
    assert any("linear" in code for code in codes)


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
    with pytest.raises(InputError, match=r"the model's (features|logits) row 2, column"):
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
    other = OODModel(elsewhere, as_detector(mlp(), TRAIN, HELD_OUT))
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


@COMPILER_LOOKS_AT_GRADIENTS
@pytest.mark.parametrize("way", ["hooks per pass", "attached", "compiled"])
def test_threads_do_not_see_each_other(model, way):
    guarded = OODModel(model.train(), as_detector(model, TRAIN, HELD_OUT))
    if way == "attached":
        guarded.attach()
    judge = torch.compile(guarded, backend="eager") if way == "compiled" else guarded
    parts = [INPUTS[:10], INPUTS[10:15], INPUTS[15:], FAR]
    expected = [guarded(part) for part in parts]
    failures = []

    def work(place):
        try:
            for _ in range(60):
                assert_same_results(judge(parts[place]), expected[place])
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


def test_a_batch_that_is_a_mapping_may_be_passed_whole(guarded):
    class Named(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, pixels, scale=1.0):
            return self.inner(pixels * scale)

    named = OODModel(Named(guarded.model), guarded.detector)
    expected = named(pixels=INPUTS, scale=2.0).score
    assert torch.equal(named({"pixels": INPUTS, "scale": 2.0, "labels": torch.zeros(30)}).score, expected)


def test_no_input_is_kept_in_a_copy_or_a_pickle(guarded):
    guarded(INPUTS)
    assert guarded._example is not None
    assert copy.deepcopy(guarded)._example is None
    assert pickle.loads(pickle.dumps(guarded))._example is None

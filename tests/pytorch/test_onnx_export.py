"""Exported graphs answer as PyTorch and the array detectors do, or nothing is written."""

import copy
import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

from torch import nn  # noqa: E402

from gem_ood import GEM, MSP, Energy, Mahalanobis, MaxLogit, __version__  # noqa: E402
from gem_ood.detectors import Head  # noqa: E402
from gem_ood.errors import (  # noqa: E402
    FileFormatError,
    InputError,
    MissingExtraError,
    NotCalibratedError,
    NotFittedError,
)
from gem_ood.thresholds import conformal_p_values, rank_scores  # noqa: E402
from gem_ood.torch import ODIN, Ensemble, GradNorm, OODModel, exporting  # noqa: E402
from gem_ood.torch.exporting import export_onnx, read_metadata  # noqa: E402
from gem_ood.torch.judging import _count_at_or_below  # noqa: E402

OUTPUTS = ("logits", "score", "p_value", "is_ood", "nearest_class")
N_INPUTS, N_CLASSES = 4, 3

#: Float32 products summed in another order, after a network of two layers.
ROUNDING = 1e-5


def rows_with_labels(n_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_rows) % N_CLASSES
    return torch.randn(n_rows, N_INPUTS, generator=generator) + 2.0 * labels[:, None], labels


def loader(n_batches=3, seed=0):
    return [rows_with_labels(60, seed=seed + place) for place in range(n_batches)]


def perceptron(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(N_INPUTS, 8), nn.ReLU(), nn.Linear(8, N_CLASSES))


def guarded(detector=None, model=None, **options):
    guard = OODModel(perceptron() if model is None else model, detector or GEM(covariance=0.1), **options)
    return guard.fit(loader()).calibrate(loader(seed=10))


class Changing(nn.Module):
    """A classifier whose forward holds something that a graph cannot, or does not, follow."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.dropout, self.linear, self.change = nn.Dropout(), nn.Linear(N_INPUTS, N_CLASSES), change

    def forward(self, x):
        return self.linear(self.dropout(self.change(x)))


def run(path, *tensors):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), feed), strict=True))


def assert_answers_alike(guard, path, *tensors, **named):
    found = run(path, *(tensors or named.values()))
    with torch.no_grad():
        answer = guard(*tensors, **named)
    for name in ("logits", "score"):
        expected = getattr(answer, name).numpy()
        assert found[name].dtype == expected.dtype
        np.testing.assert_allclose(found[name], expected, rtol=ROUNDING, atol=ROUNDING)
    # A score that rounding moves past a calibration score has another p-value; none of these has.
    np.testing.assert_array_equal(found["p_value"], answer.p_value.numpy())
    np.testing.assert_array_equal(found["is_ood"], answer.is_ood.numpy())
    np.testing.assert_array_equal(found["nearest_class"], answer.nearest_class.numpy())
    return found


def snapshot(model):
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return weights, [module.training for module in model.modules()]


def assert_untouched(model, before):
    weights, training = before
    assert [module.training for module in model.modules()] == training
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(type(tensor) is nn.Parameter for tensor in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# Parity


DETECTORS = {
    "GEM": lambda: GEM(covariance=0.1),
    "GEM-normalize": lambda: GEM(covariance=0.1, normalize=True),
    "GEM-relative": lambda: GEM(covariance=0.1, relative=True),
    "GEM-empirical-priors": lambda: GEM(covariance=0.1, priors="empirical"),
    "Mahalanobis": lambda: Mahalanobis(covariance=0.1),
    "MSP": lambda: MSP(temperature=2.0),
    "MaxLogit": MaxLogit,
    "Energy": lambda: Energy(temperature=0.5),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_the_graph_of_every_detector_answers_as_pytorch_and_as_the_arrays_do(name, tmp_path):
    guard = guarded(DETECTORS[name]()).calibrate(tpr=0.5)  # so that both verdicts occur
    guard.export_onnx(tmp_path / "model.onnx")
    verdicts = set()
    for n_rows in (1, 5, 64):
        inputs, _ = rows_with_labels(n_rows, seed=100 + n_rows)
        inputs[n_rows // 2 :] *= 4.0
        found = assert_answers_alike(guard, tmp_path / "model.onnx", inputs)
        features, _ = guard.features([inputs])
        arrays = guard.detector.verdicts(features)
        np.testing.assert_allclose(found["score"], arrays.score, rtol=ROUNDING, atol=ROUNDING)
        np.testing.assert_array_equal(found["p_value"], arrays.p_value)
        np.testing.assert_array_equal(found["nearest_class"], arrays.nearest_class)
        verdicts |= set(found["is_ood"].tolist())
    assert verdicts == {False, True}


def test_a_score_of_logits_read_through_a_head_is_exported(tmp_path):
    model = perceptron()
    head = Head(model[-1].weight.detach().numpy(), model[-1].bias.detach().numpy())
    guard = guarded(Energy(head=head), model)
    guard.export_onnx(tmp_path / "model.onnx")
    assert_answers_alike(guard, tmp_path / "model.onnx", rows_with_labels(9, seed=3)[0])


def test_a_float32_guard_gives_float32_scores_and_holds_no_double_where_its_scores_need_none(tmp_path):
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(200, 64, generator=generator), torch.arange(200) % 2) for _ in range(2)]
    torch.manual_seed(0)
    guard = OODModel(nn.Sequential(nn.Linear(64, 2)), GEM(), dtype=torch.float32).fit(batches).calibrate(batches)
    guard.export_onnx(tmp_path / "model.onnx")
    assert_answers_alike(guard, tmp_path / "model.onnx", torch.randn(20, 64, generator=generator))

    model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "model.onnx"))
    double = onnx.TensorProto.DOUBLE
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    assert len(values) > len(model.graph.node)
    assert not any(value.type.tensor_type.elem_type == double for value in values)
    assert not any(tensor.data_type == double for tensor in model.graph.initializer)

    guard = guarded(dtype=torch.float32)  # in few dimensions, float32 alone would lose too much
    guard.export_onnx(tmp_path / "model.onnx")
    found = assert_answers_alike(guard, tmp_path / "model.onnx", rows_with_labels(20, seed=3)[0])
    assert found["score"].dtype == found["p_value"].dtype == np.float32


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 2),
        nn.Dropout(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )


@pytest.fixture(scope="module")
def guarded_images(tmp_path_factory):
    """A small network with its guard on spatial maps, as it was before export, and its file."""
    generator = torch.Generator().manual_seed(0)
    images = [(torch.randn(40, 3, 8, 8, generator=generator), torch.arange(40) % 2) for _ in range(2)]
    model = convolutions()
    model(images[0][0])  # statistics that are not the first ones
    model[5].eval()
    guard = OODModel(model, GEM(covariance=0.1), layer="4").fit(images).calibrate(images)
    before = snapshot(model)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export_onnx(guard, path)
    return guard, before, path


@pytest.mark.parametrize("n_rows", [1, 5, 64])
def test_spatial_maps_are_pooled_in_the_graph(guarded_images, n_rows):
    guard, _, path = guarded_images
    images = torch.randn(n_rows, 3, 8, 8, generator=torch.Generator().manual_seed(n_rows))
    assert_answers_alike(guard, path, images * torch.linspace(0.5, 6.0, n_rows)[:, None, None, None])


def test_export_leaves_a_model_that_was_training_as_it_was(guarded_images):
    guard, before, _ = guarded_images
    assert before[1].count(True) > 1
    assert before[1].count(False) == 1
    assert_untouched(guard.model, before)
    assert_untouched(copy.deepcopy(guard).model, before)


@pytest.mark.parametrize("spot", [(0, 0, 0), (1, 3, 3), (2, 7, 7), (2, 4, 5)])
def test_an_image_with_nan_is_out_whatever_the_runtime_makes_of_nan(guarded_images, spot):
    guard, _, path = guarded_images
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images[(0, *spot)] = torch.nan
    found = run(path, images)
    n_rows = guard.detector.threshold_.n_rows
    assert found["score"][0] == -np.inf
    assert found["p_value"][0] == 1 / (n_rows + 1)
    np.testing.assert_array_equal(found["is_ood"], [True, False])


class OneInputMayBeMissing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2 * N_INPUTS, N_CLASSES)

    def forward(self, sure, missing):
        return self.linear(torch.cat([sure, missing.nan_to_num()], dim=1))


def test_nan_is_judged_for_each_input_by_what_the_model_makes_of_it(tmp_path):
    batches = [((rows, rows.flip(0)), labels) for rows, labels in loader()]
    guard = OODModel(OneInputMayBeMissing(), GEM(covariance=0.1)).fit(batches).calibrate(batches)
    guard.export_onnx(tmp_path / "model.onnx")
    sure, missing = rows_with_labels(3)[0], rows_with_labels(3)[0].flip(0)
    missing[:, 1] = torch.nan
    found = assert_answers_alike(guard, tmp_path / "model.onnx", sure, missing)
    assert np.isfinite(found["score"]).all()
    sure[0, 0] = torch.nan
    scores = run(tmp_path / "model.onnx", sure, missing)["score"]
    assert scores[0] == -np.inf
    np.testing.assert_array_equal(scores[1:], found["score"][1:])


# Scores of any value: a model that hands its input through, so that the largest input is the score


def passing_on(calibration, **options):
    detector = MaxLogit().partial_fit(np.zeros((1, 2)))
    detector.calibrate_scores(calibration, **options)
    return OODModel(nn.Identity(), detector)


def as_logits(scores):
    scores = torch.as_tensor(np.asarray(scores), dtype=torch.float64)
    return torch.stack([scores, scores - 1.0], dim=1)


CALIBRATIONS = {
    "one-score": [0.5],
    "ties": [-4.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 7.0],
    "infinitely-low": [-np.inf, -np.inf, 0.0, 1.0],
}


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7, 8, 9, 100])
def test_halving_steps_count_as_a_sorted_search_does(n_rows):
    ordered = np.sort(np.random.default_rng(n_rows).integers(0, 1 + n_rows // 2, size=n_rows)).astype(float)
    ordered[0] = -np.inf
    scores = np.concatenate([ordered, ordered + 0.5, [-np.inf, np.inf]])
    counts = _count_at_or_below(torch.tensor(ordered), torch.tensor(scores))
    np.testing.assert_array_equal(counts, np.searchsorted(ordered, scores, side="right"))


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_p_values_in_the_graph_count_ties_and_infinities_as_the_arrays_do(name, tmp_path):
    guard = passing_on(CALIBRATIONS[name], tpr=0.5)
    ordered = guard.detector.calibration_scores_
    guard.export_onnx(tmp_path / "model.onnx", example=as_logits([0.0, 5.0, 100.0]))
    scores = np.concatenate([ordered, np.nextafter(ordered, -np.inf), np.nextafter(ordered, np.inf), [-1e300, 1e300]])
    found = run(tmp_path / "model.onnx", as_logits(scores))
    np.testing.assert_array_equal(found["score"], scores)
    np.testing.assert_array_equal(found["p_value"], conformal_p_values(ordered, scores))
    np.testing.assert_array_equal(found["is_ood"], scores < guard.detector.offset_)
    assert {1 / (len(ordered) + 1), 1.0} <= set(found["p_value"]) or name == "infinitely-low"

    faults = run(tmp_path / "model.onnx", torch.tensor([[torch.nan, 0.0], [0.0, torch.nan], [torch.inf, 0.0]]).double())
    assert faults["score"].tolist() == [-np.inf] * 3
    np.testing.assert_array_equal(faults["p_value"], conformal_p_values(ordered, np.full(3, -np.inf)))
    assert faults["is_ood"].all() or guard.detector.offset_ == -np.inf


def test_a_hundred_thousand_calibration_scores_stay_exact(tmp_path):
    generator = np.random.default_rng(0)
    guard = passing_on(generator.normal(size=100_000).round(4))
    ordered = guard.detector.calibration_scores_
    guard.export_onnx(tmp_path / "model.onnx", example=as_logits([0.0, 1.0]))
    scores = np.concatenate([generator.normal(size=500), ordered[::400], np.nextafter(ordered[::400], -np.inf)])
    found = run(tmp_path / "model.onnx", as_logits(scores))
    np.testing.assert_array_equal(found["p_value"], conformal_p_values(ordered, scores))


def test_a_thinned_calibration_gives_the_same_p_values_in_the_graph(tmp_path):
    generator = np.random.default_rng(0)
    scores = np.concatenate([generator.normal(size=20_000), np.full(500, 0.25), np.full(30, -np.inf)])
    detector = MaxLogit().partial_fit(np.zeros((1, 2)))
    detector.calibrate_ranked(rank_scores([(scores, None)], precision=0.05))
    assert len(detector.calibration_scores_) < 300
    guard, values = OODModel(nn.Identity(), detector), detector.calibration_scores_[1:]
    guard.export_onnx(tmp_path / "model.onnx", example=as_logits([0.0, 1.0]))
    asked = np.concatenate([values, np.nextafter(values, -np.inf), np.nextafter(values, np.inf), [-1e300, 1e300]])
    found, answer = run(tmp_path / "model.onnx", as_logits(asked)), guard(as_logits(asked))
    np.testing.assert_array_equal(found["p_value"], detector._p_values(asked))
    np.testing.assert_array_equal(answer.p_value, detector._p_values(asked))
    np.testing.assert_array_equal(found["is_ood"], asked < detector.offset_)
    assert read_metadata(tmp_path / "model.onnx")["n_rows"] == 20_530


# Inputs


def test_a_text_classifier_is_exported_for_sequences_of_any_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(config)

    def texts(n_rows, length):
        mask = torch.ones(n_rows, length, dtype=torch.int64)
        mask[::2, length // 2 + 1 :] = 0
        return {"input_ids": torch.randint(50, (n_rows, length)), "attention_mask": mask}

    batches = [{**texts(40, 9), "labels": torch.arange(40) % 2} for _ in range(2)]
    guard = OODModel(model, Mahalanobis(covariance=0.1)).fit(batches).calibrate(batches)
    before = snapshot(model)
    sequence = {1: "sequence"}
    guard.export_onnx(tmp_path / "m.onnx", dynamic_shapes={"input_ids": sequence, "attention_mask": sequence})

    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert shapes == {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "sequence"]}
    for n_rows, length in ((1, 9), (5, 3), (64, 24)):
        assert_answers_alike(guard, tmp_path / "m.onnx", **texts(n_rows, length))
    assert_untouched(model, before)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(N_INPUTS, N_CLASSES)

    def forward(self, left, right, scale=1.0):
        return self.linear(scale * left + right.tanh())


def guarded_two_inputs():
    batches = [((rows, rows.flip(0)), labels) for rows, labels in loader()]
    return OODModel(TwoInputs(), GEM(covariance=0.1)).fit(batches).calibrate(batches)


def test_inputs_are_called_as_the_forward_calls_them_and_every_batch_axis_is_free(tmp_path):
    guard = guarded_two_inputs()
    guard.export_onnx(tmp_path / "model.onnx", example=(torch.zeros(1, N_INPUTS), torch.ones(1, N_INPUTS)))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [value.name for value in session.get_inputs()] == ["left", "right"]
    assert [value.name for value in session.get_outputs()] == list(OUTPUTS)
    assert all(value.shape[0] == "batch" for value in (*session.get_inputs(), *session.get_outputs()))
    assert_answers_alike(guard, tmp_path / "model.onnx", *(rows_with_labels(5, seed=seed)[0] for seed in (3, 4)))


def test_inputs_may_be_given_other_names_and_the_operator_set_chosen(tmp_path):
    guard = guarded_two_inputs()
    guard.export_onnx(tmp_path / "model.onnx", input_names=["first", "second"], opset=21)
    model = onnx.load(tmp_path / "model.onnx")
    assert [value.name for value in model.graph.input] == ["first", "second"]
    assert [entry.version for entry in model.opset_import if not entry.domain] == [21]


TWO_ROWS = torch.zeros(2, N_INPUTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": ["left"]}, "input_names has 1 names but the model takes 2 tensors"),
        ({"input_names": ["left", "score"]}, "names must differ from each other and from logits"),
        ({"input_names": ["left", "left"]}, "names must differ from each other and from logits"),
        ({"dynamic_shapes": {"middle": {1: "width"}}}, "'middle', which is no input; the inputs are left, right"),
        ({"dynamic_shapes": {"left": {2: "width"}}}, "'left' has axes 0 to 1"),
        ({"dynamic_shapes": {"left": {1: "batch"}}}, "axis 0 alone is 'batch'"),
        ({"example": "text"}, "example is a str; pass a tensor"),
        ({"example": (TWO_ROWS, TWO_ROWS[:1])}, r"example holds \(2, 4\), \(1, 4\); pass tensors with the same number"),
        ({"example": (TWO_ROWS[:0], TWO_ROWS[:0])}, "at least one"),
        ({"example": TWO_ROWS}, "the model cannot run on the example: TypeError: .*'right'"),
        ({"tolerance": 0.0}, "tolerance is 0.0; pass a number between 0 and 1"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.split(";")[0][:40],
)
def test_options_that_do_not_fit_are_refused(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        guarded_two_inputs().export_onnx(tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_a_guard_that_has_seen_no_input_asks_for_an_example_and_says_nothing_else(tmp_path, capfd, caplog):
    guard = OODModel(perceptron(), guarded().detector)
    with pytest.raises(InputError, match="pass example= a batch of inputs"):
        guard.export_onnx(tmp_path / "model.onnx")
    guard.export_onnx(tmp_path / "model.onnx", example=rows_with_labels(1)[0])
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert_answers_alike(guard, tmp_path / "model.onnx", rows_with_labels(5, seed=3)[0])


def test_a_model_inside_data_parallel_is_exported_without_it(tmp_path):
    guard = guarded(model=nn.DataParallel(perceptron()))
    guard.export_onnx(tmp_path / "model.onnx")
    assert isinstance(guard.model, nn.DataParallel)
    assert_answers_alike(guard, tmp_path / "model.onnx", rows_with_labels(5, seed=3)[0])


def test_an_ensemble_is_one_graph(tmp_path):
    guard = Ensemble([perceptron(seed=0), perceptron(seed=1)], score="entropy").calibrate(loader())
    guard.export_onnx(tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").graph.input[0].name == "input"
    found = read_metadata(tmp_path / "model.onnx")
    assert (found["guard"], found["settings"]["score"], found["classes"]) == ("Ensemble", "entropy", [0, 1, 2])
    assert_answers_alike(guard, tmp_path / "model.onnx", rows_with_labels(5, seed=3)[0])


# What the file says


def test_metadata_carry_the_threshold_the_guarantee_and_the_versions(tmp_path):
    names = np.array(["cat", "dog", "bird"])
    model = perceptron()
    batches = [(rows, names[labels]) for rows, labels in loader()]
    guard = OODModel(model, GEM(covariance=0.1, priors="empirical")).fit(batches)
    guard.calibrate(batches, tpr=0.9, confidence=0.95)
    guard.export_onnx(tmp_path / "model.onnx")

    threshold = guard.detector.threshold_
    found = read_metadata(tmp_path / "model.onnx")
    assert found["threshold"] == threshold.value
    assert (found["tpr"], found["confidence"], found["method"], found["n_rows"]) == (0.9, 0.95, "pac", 180)
    assert found["guarantee"] == threshold.guarantee
    assert found["detector"] == "gem"
    assert found["options"]["priors"] == "empirical"
    assert found["options"]["covariance"] == 0.1
    assert found["layer"] == "2"
    assert found["classes"] == ["bird", "cat", "dog"]
    assert found["versions"] == {"gem-ood": __version__, "torch": torch.__version__, "onnx": onnx.__version__}

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    raw = session.get_modelmeta().custom_metadata_map
    assert json.loads(raw["gem_ood.guarantee"]) == threshold.guarantee
    assert b"/" + __file__.encode().split(b"/", 2)[1] + b"/" not in (tmp_path / "model.onnx").read_bytes()


def test_metadata_of_another_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "absent.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"not an ONNX file")
    with pytest.raises(FileFormatError, match="not a readable ONNX file"):
        read_metadata(tmp_path / "damaged.onnx")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), tmp_path / "foreign.onnx")
    with pytest.raises(FileFormatError, match="holds no guard"):
        read_metadata(tmp_path / "foreign.onnx")


# Refusals


@pytest.fixture
def earlier(tmp_path):
    """A path at which there is a file already."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"an earlier file")
    return path


def assert_refused(guard, path, message):
    before = snapshot(guard.model)
    with pytest.raises(InputError, match=message):
        guard.export_onnx(path)
    assert path.read_bytes() == b"an earlier file"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert_untouched(guard.model, before)


def differs_under_export(x):
    return x * 1.01 if torch.compiler.is_exporting() else x


def test_a_graph_that_answers_otherwise_than_pytorch_is_not_written(earlier):
    guard = guarded(model=Changing(differs_under_export).train())
    assert_refused(guard, earlier, "nothing was written: logits differ by 0.0.* beyond tolerance=0.0001")
    guard.export_onnx(earlier, tolerance=0.5)
    assert read_metadata(earlier)["detector"] == "gem"


def test_a_graph_with_another_threshold_p_value_or_label_is_not_written(earlier, monkeypatch):
    changes = {
        "threshold": (lambda values: values.fill_(torch.inf), "verdicts are not those"),
        "calibration": (lambda values: values.sub_(1.0), "p-values differ by"),
        "labels": (lambda values: values.add_(1), "nearest classes differ"),
    }
    graphs = []
    exported = exporting._exported

    def exported_then_changed(graph, inputs, opset):
        graphs.append(graphs[0] if graphs else exported(graph, inputs, opset))
        change(getattr(graph.judge, name))
        return copy.deepcopy(graphs[0])

    monkeypatch.setattr(exporting, "_exported", exported_then_changed)
    for name, (change, message) in changes.items():  # noqa: B007
        assert_refused(guarded(), earlier, message)
    assert len(graphs) == len(changes)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x: x + 1 if x.sum() > 0 else x, "data-dependent"),
        (lambda x: x.view(2, -1).view(-1, N_INPUTS) if torch.compiler.is_exporting() else x, "constant"),
        (lambda x: torch.linalg.svd(x.T @ x)[0][:1] + x, "linalg_svd"),
    ],
    ids=["branches-on-values", "fixed-batch", "no-such-operator"],
)
def test_what_the_exporter_cannot_follow_is_one_error_and_nothing_printed(change, cause, earlier, capfd):
    guard = guarded(model=Changing(change).train())
    assert_refused(guard, earlier, f"PyTorch's exporter cannot make an ONNX graph of this model: .*{cause}")
    assert capfd.readouterr() == ("", "")


def test_an_operator_set_that_cannot_be_written_is_refused(earlier):
    with pytest.raises(InputError, match="opset is 9 but the exporter could only write"):
        guarded().export_onnx(earlier, opset=9)
    assert earlier.read_bytes() == b"an earlier file"


def test_a_guard_without_a_threshold_is_not_exported(earlier):
    guard = OODModel(perceptron(), GEM(covariance=0.1))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        guard.export_onnx(earlier)
    with pytest.raises(NotCalibratedError, match=r"call calibrate\(held_out_loader, tpr=0.95\) before export_onnx"):
        guard.fit(loader()).export_onnx(earlier)
    assert earlier.read_bytes() == b"an earlier file"


class OwnDetector(GEM):
    """A detector whose arithmetic is known to its arrays alone."""


def test_guards_whose_score_is_no_graph_are_refused(earlier):
    assert_refused(guarded(input_noise=0.01), earlier, "input_noise is 0.01, which needs gradients")
    assert_refused(guarded(OwnDetector(covariance=0.1)), earlier, "a OwnDetector has no form that ONNX knows")
    assert_refused(ODIN(perceptron()).calibrate(loader()), earlier, "which needs gradients")
    by_gradients = GradNorm(perceptron(), method="autograd").calibrate(loader())
    assert_refused(by_gradients, earlier, "an OODModel, with a detector such as GEM.*where this GradNorm is not")
    with pytest.raises(InputError, match="guard is a Linear; pass an OODModel"):
        export_onnx(nn.Linear(1, 1), earlier)


def test_a_model_beyond_the_limit_of_the_format_is_refused_before_it_is_traced(earlier, monkeypatch):
    monkeypatch.setattr(exporting, "LARGEST_FILE", 100)
    assert_refused(guarded(), earlier, "an ONNX file ends at 2 GiB")


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra_is_named_with_its_command(module, earlier, monkeypatch):
    guard = guarded()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf'need {module}, .* run pip install "gem-ood\[onnx\]"'):
        guard.export_onnx(earlier)
    assert earlier.read_bytes() == b"an earlier file"


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="create it first"):
        guarded().export_onnx(tmp_path / "absent" / "model.onnx")

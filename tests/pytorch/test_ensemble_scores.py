"""MCDropout and Ensemble: against SciPy, against sub-networks built by hand, and as guards with every verb."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gem_ood.errors import FileFormatError, InputError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402
from gem_ood.torch.ensembles import Ensemble, MCDropout  # noqa: E402

SCORES = ["msp", "entropy", "mutual-information"]


def classifier(seed, p=0.3, n_classes=4):
    torch.manual_seed(seed)
    layers = (nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(p), nn.Linear(16, n_classes))
    model = nn.Sequential(*layers).double()
    model[1].running_mean.normal_()
    model[4].weight.data.mul_(4.0)
    return model


def members():
    return [classifier(seed) for seed in range(3)]


def data(n_rows, seed=0):
    return torch.randn(n_rows, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected_score(logits, score):
    """The score of members × rows × classes from SciPy's probabilities and entropies."""
    probabilities = softmax(logits, axis=2)
    mean = probabilities.mean(0)
    if score == "msp":
        return mean.max(1)
    if score == "entropy":
        return -entropy(mean, axis=1)
    return entropy(probabilities, axis=2).mean(0) - entropy(mean, axis=1)


GUARDS = {
    "ensemble": lambda: Ensemble(members()),
    "ensemble-entropy": lambda: Ensemble(nn.ModuleList(members()), score="entropy"),
    "dropout": lambda: MCDropout(classifier(0), n_passes=5),
    "dropout-information": lambda: MCDropout(classifier(0), n_passes=5, score="mutual-information", seed=9),
}


def models_for(guarded):
    return members() if isinstance(guarded, Ensemble) else classifier(0)


@pytest.fixture(params=GUARDS, scope="module")
def calibrated(request):
    return GUARDS[request.param]().calibrate([data(120), data(80, seed=1)], progress=False)


# Ensembles


@pytest.mark.parametrize("score", SCORES)
def test_an_ensemble_scores_its_mean_as_scipy_does(score):
    models, inputs = members(), data(30)
    logits = np.stack([model.eval()(inputs).detach().numpy() for model in models])
    result = Ensemble(models, score=score)(inputs)
    np.testing.assert_allclose(result.score.detach(), expected_score(logits, score), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result.logits.detach().exp(), softmax(logits, axis=2).mean(0), rtol=1e-13)
    np.testing.assert_array_equal(result.nearest_class, softmax(logits, axis=2).mean(0).argmax(1))


class Fixed(nn.Module):
    """A classifier of known logits."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, rows):
        return self.logits.expand(len(rows), -1)


def test_huge_logits_neither_overflow_nor_vanish():
    models, inputs = [Fixed(1e5, 0.0, -1e5), Fixed(0.0, 1e5, -1e5)], torch.zeros(1, 1)
    for score, expected in zip(SCORES, (0.5, -np.log(2.0), -np.log(2.0)), strict=True):
        result = Ensemble(models, score=score)(inputs)
        assert result.score.item() == pytest.approx(expected, rel=1e-12)
        assert result.logits.isfinite().all()


def test_members_of_one_mind_do_not_disagree():
    model = classifier(0)
    assert Ensemble([model, copy.deepcopy(model)], score="mutual-information")(data(50)).score.abs().max() < 1e-15
    nearly = [Fixed(1.0, 0.0), Fixed(1.0 + 2**-20, 0.0)]
    share = 1.0 / (1.0 + np.exp(-1.0))
    expected = -(2.0**-42) * share * (1.0 - share) / 2.0  # half the variance of the log-odds, to second order
    found = Ensemble(nearly, score="mutual-information")(torch.zeros(1, 1)).score.item()
    assert found == pytest.approx(expected, rel=1e-3)


def test_members_of_other_classes_are_refused():
    with pytest.raises(InputError, match="gave 4 logits but model 1 gave 5"):
        Ensemble([classifier(0), classifier(1, n_classes=5)])(data(2))


@pytest.mark.parametrize("models", [[], [nn.Identity()], nn.Sequential(nn.Identity(), nn.Identity()), ["a", "b"], 3])
def test_what_is_no_list_of_models_is_refused(models):
    with pytest.raises(InputError, match="pass a list of two"):
        Ensemble(models)


class Named(nn.Module):
    """A member that takes its input by name, after another that may be left out."""

    def __init__(self, seed):
        super().__init__()
        self.inner = classifier(seed)

    def forward(self, mask=None, rows=None):
        return {"logits": self.inner(rows)}


def test_members_take_mappings_as_a_single_model_does():
    inputs = data(5)
    expected = Ensemble([Named(0).inner, Named(1).inner])(inputs).score.detach()
    by_name = Ensemble([Named(0), Named(1)]).score_samples([{"rows": inputs}], progress=False)
    under_another_name = Ensemble([Named(0).inner, Named(1).inner]).score_samples([{"pixels": inputs}], progress=False)
    np.testing.assert_allclose(by_name, expected, rtol=1e-13)
    np.testing.assert_allclose(under_another_name, expected, rtol=1e-13)


def test_an_ensemble_comes_back_only_with_all_its_members(tmp_path):
    Ensemble(members()).calibrate([data(50)], progress=False).save(tmp_path / "guard.safetensors")
    with pytest.raises(InputError, match="an ensemble of 3 models but 2 came"):
        OODModel.load(members()[:2], tmp_path / "guard.safetensors")


# Dropout


def masks_of(guarded, inputs):
    """What each pass multiplied the units before the last layer by, seen from outside."""
    model, seen = guarded.model, []
    watch = model[4].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    guarded(inputs)
    watch.remove()
    return [units / model[:3](inputs).detach() for units in seen if len(units) == len(inputs)]


@pytest.mark.parametrize("score", SCORES)
def test_each_pass_is_a_sub_network_with_its_units_scaled(score):
    model, inputs = classifier(0).eval(), data(20)
    guarded = MCDropout(model, n_passes=4, score=score)
    masks = masks_of(guarded, inputs)
    assert len(masks) == 4
    logits = []
    for mask in masks:
        kept = (mask[0] > 0.5).double()
        torch.testing.assert_close(mask, (kept / 0.7).expand(20, -1))  # the same sub-network for all rows
        logits.append(model[4](model[:3](inputs) * kept / 0.7).detach().numpy())
    assert len({tuple((mask[0] > 0.5).tolist()) for mask in masks}) == 4
    result = guarded(inputs)
    np.testing.assert_allclose(result.score.detach(), expected_score(np.stack(logits), score), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result.logits.detach().exp(), softmax(logits, axis=2).mean(0), rtol=1e-12)


def one_pass(layer, rows, seed=0):
    """What a dropout layer alone makes of rows in the first pass."""

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = layer, []

        def forward(self, rows):
            self.seen.append(self.layer(rows))
            return torch.zeros(len(rows), 2)

    model = Alone()
    MCDropout(model, n_passes=2, seed=seed)(rows)
    return model.seen[-2]


@pytest.mark.parametrize(
    ("layer", "shape", "mask_shape"),
    [
        (nn.Dropout(0.4), (3, 50), (1, 50)),
        (nn.Dropout(0.4, inplace=True), (3, 8, 5, 5), (1, 8, 5, 5)),
        (nn.Dropout1d(0.4), (3, 50, 7), (1, 50, 1)),
        (nn.Dropout2d(0.4), (3, 50, 4, 4), (1, 50, 1, 1)),
        (nn.Dropout3d(0.4), (3, 50, 2, 2, 2), (1, 50, 1, 1, 1)),
    ],
)
def test_each_kind_drops_what_it_drops_in_training(layer, shape, mask_shape):
    rows = torch.ones(shape)
    found = one_pass(layer, rows)
    first = found[tuple(slice(size) for size in mask_shape)]
    assert (found == first).all()  # equal along every axis that the mask does not have
    assert first.unique().tolist() == [0.0, pytest.approx(1.0 / 0.6)]
    assert 0.0 < (first == 0.0).double().mean() < 1.0
    assert (rows == 1.0).all()


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.AlphaDropout(0.3), (2, 400)), (nn.FeatureAlphaDropout(0.3), (2, 400, 3))]
)
def test_alpha_dropout_takes_the_two_values_that_it_takes_in_training(layer, shape):
    rows = torch.full(shape, 0.7, dtype=torch.float64)
    torch.manual_seed(0)
    found, trained = one_pass(layer, rows), layer.train()(rows.clone())
    torch.testing.assert_close(found.unique(), trained.unique(), rtol=1e-12, atol=0.0)
    assert (found > 0.0).double().mean() == pytest.approx(0.7, abs=0.1)  # four deviations of a share of 400
    assert (found == found[:1]).all()


def test_a_layer_that_drops_everything_gives_zeros():
    assert (one_pass(nn.Sequential(nn.Dropout(1.0), nn.AlphaDropout(1.0)), torch.ones(2, 4)) == 0.0).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_keep_the_right_share_and_positions_are_independent(p):
    kept = (one_pass(nn.Dropout(p), torch.ones(1, 300, 300)) != 0.0).double()[0]
    deviation = np.sqrt(p * (1 - p) / kept.numel())
    assert kept.mean() == pytest.approx(1 - p, abs=5 * deviation)
    for one, other in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept, kept.T)):
        covariance = ((one - kept.mean()) * (other - kept.mean())).mean() / (p * (1 - p))
        assert abs(covariance) < 0.02  # six deviations, since 1/√90,000 is 0.0033
    elsewhere = (one_pass(nn.Dropout(p), torch.ones(1, 300, 300), seed=1) != 0.0).double()[0]
    assert abs(((kept - kept.mean()) * (elsewhere - kept.mean())).mean() / (p * (1 - p))) < 0.02


def test_masks_do_not_depend_on_the_length_of_other_rows():
    layer = nn.Dropout(0.5)
    short, long = one_pass(layer, torch.ones(2, 5, 8)), one_pass(layer, torch.ones(2, 9, 8))
    assert torch.equal(short, long[:, :5])


class Pooled(nn.Module):
    """A token classifier that ignores padding, with inputs along either axis inside."""

    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.drop, self.linear = nn.Embedding(9, 8, padding_idx=0), nn.Dropout(0.5), nn.Linear(8, 3)
        self.batch_first = batch_first

    def forward(self, ids):
        tokens = self.embedding(ids)
        if not self.batch_first:
            tokens = tokens.transpose(0, 1)
        tokens = self.drop(torch.tanh(self.drop(tokens)))  # one module that runs twice
        return self.linear(tokens.sum(1 if self.batch_first else 0))


@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_at_the_end_and_the_axis_of_inputs_change_nothing(batch_first):
    guarded = MCDropout(Pooled(batch_first).double(), n_passes=4)
    ids = torch.randint(1, 9, (6, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([ids, torch.zeros(6, 3, dtype=torch.int64)], 1)
    expected = MCDropout(Pooled(True).double(), n_passes=4)(ids).score
    torch.testing.assert_close(guarded(ids).score, expected)
    torch.testing.assert_close(guarded(padded).score, expected)


def test_a_layer_that_sees_several_places_per_input_masks_each_of_them():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.seen = nn.Dropout(0.5), []

        def forward(self, rows):
            self.seen.append(self.drop(rows.reshape(-1, 20)).reshape(len(rows), 3, 20))
            return rows[:, :2]

    model = Windows()
    MCDropout(model, n_passes=2)(torch.ones(4, 60))
    found = model.seen[-1]
    assert (found == found[:1]).all()
    assert not torch.equal(found[0, 0], found[0, 1])


def test_a_layer_that_runs_twice_has_two_masks():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.seen = nn.Dropout(0.5), []

        def forward(self, rows):
            self.seen.append((self.drop(rows), self.drop(rows)))
            return rows[:, :2]

    model = Twice()
    MCDropout(model, n_passes=2)(torch.ones(2, 64))
    first, second = model.seen[-1]
    assert not torch.equal(first, second)


def test_sub_networks_follow_the_seed_and_nothing_else():
    inputs = data(10)
    torch.manual_seed(1)
    first = MCDropout(classifier(0), n_passes=3)(inputs).score
    state = torch.random.get_rng_state()
    again = MCDropout(classifier(0), n_passes=3)
    torch.random.set_rng_state(state)
    repeated = [again(inputs).score for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)  # the caller's stream of random numbers is not touched
    assert torch.equal(first, repeated[0])
    assert torch.equal(first, repeated[1])
    assert not torch.equal(first, MCDropout(classifier(0), n_passes=3, seed=1)(inputs).score)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.linear = nn.Dropout(0.5), nn.Linear(6, 4)

    def forward(self, rows):
        return self.linear(rows)


class Joined(Unused):
    """Inputs disappear inside into one."""

    def forward(self, rows):
        return self.linear(rows) + self.drop(rows.sum(0, keepdim=True)).sum()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MCDropout(nn.Linear(6, 4)), "Linear has no dropout layer with p above 0"),
        (lambda: MCDropout(classifier(0, p=0.0)), "no dropout layer with p above 0"),
        (lambda: MCDropout(Unused().double())(data(2)), "no dropout layer of the model ran"),
        (lambda: MCDropout(Joined().double())(data(2)), "inputs cannot be told apart"),
        (lambda: MCDropout(classifier(0), n_passes=1), "at least 2"),
        (lambda: MCDropout(classifier(0), seed=0.5), "whole number"),
        (lambda: MCDropout(classifier(0), score="variance"), "'mutual-information'"),
        (lambda: Ensemble(members(), score="variance"), "'mutual-information'"),
    ],
)
def test_what_cannot_be_sampled_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_hooks_go_away_even_when_the_model_fails():
    model = classifier(0)
    with pytest.raises(RuntimeError):
        MCDropout(model)(torch.zeros(2, 5, dtype=torch.float64))
    assert not any(part._forward_hooks for part in model.modules())


def test_threads_that_share_a_model_do_not_disturb_each_other():
    guarded = MCDropout(classifier(0), n_passes=5)
    batches = [data(6, seed=seed) for seed in range(8)]
    expected = [guarded(batch).score for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: guarded(batch).score, batches))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0.0)


# Both, as guards


@pytest.mark.parametrize("name", GUARDS)
def test_neither_batch_size_nor_order_changes_a_score(name):
    guarded, inputs = GUARDS[name](), data(64)
    together = guarded(inputs).score
    alone = torch.cat([guarded(row[None]).score for row in inputs])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(alone, together, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(guarded(inputs[order]).score, together[order], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", GUARDS)
def test_the_models_are_left_as_they_were(name):
    guarded, inputs = GUARDS[name](), data(5)
    guarded.model.eval()
    expected = guarded(inputs).score.detach()
    before = {key: value.clone() for key, value in guarded.model.state_dict().items()}
    guarded.model.train().requires_grad_(False)
    with torch.inference_mode():
        torch.testing.assert_close(guarded(inputs).score, expected, rtol=0.0, atol=0.0)
    assert all(part.training for part in guarded.model.modules())
    assert all(torch.equal(value, before[key]) for key, value in guarded.model.state_dict().items())
    assert not any(part._forward_hooks for part in guarded.model.modules())


def test_at_most_a_twentieth_of_the_calibration_inputs_is_out(calibrated):
    result = calibrated(torch.cat([data(120), data(80, seed=1)]))
    assert 0.0 < result.is_ood.double().mean() <= 0.05
    verdicts = calibrated.verdicts([data(120), data(80, seed=1)], progress=False)
    np.testing.assert_array_equal(verdicts.is_ood, result.is_ood)
    np.testing.assert_array_equal(verdicts.nearest_class, result.logits.argmax(1))


def test_a_saved_guard_comes_back_whole(calibrated, tmp_path):
    path, inputs = tmp_path / "guard.safetensors", data(9, seed=2)
    calibrated.save(path)
    expected = calibrated(inputs)
    for kind in (type(calibrated), OODModel):
        loaded = kind.load(models_for(calibrated), path)
        assert type(loaded) is type(calibrated)
        assert loaded._settings() == calibrated._settings()
        for one, other in zip(loaded(inputs), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_a_state_dict_and_a_copy_hold_the_guard(calibrated):
    inputs = data(9, seed=2)
    expected = calibrated(inputs)
    other = copy.deepcopy(calibrated)
    other.detector.calibrate(tpr=0.5)
    other.load_state_dict(calibrated.state_dict())
    for guarded in (copy.deepcopy(calibrated), other):
        for one, two in zip(guarded(inputs), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("is_seen_first", [False, True])
def test_a_batch_without_inputs_has_an_answer_without_rows(name, is_seen_first):
    guarded, inputs = GUARDS[name](), data(3)
    if is_seen_first:
        guarded(inputs)
    result = guarded(inputs[:0])
    assert (len(result.logits), result.score.shape, result.nearest_class.shape) == (0, (0,), (0,))
    assert result.logits.shape[1] == guarded(inputs).logits.shape[1]


def test_a_model_that_was_compiled_in_place_cannot_be_sampled():
    model = classifier(0)
    model.compile(backend="eager")
    with pytest.raises(InputError, match=r"compile the guarded model: torch\.compile"):
        MCDropout(model)


def test_the_state_of_a_guard_with_another_score_is_refused():
    state = Ensemble(members(), score="entropy").calibrate([data(50)], progress=False).state_dict()
    with pytest.raises(InputError, match="score='entropy'"):
        Ensemble(members()).load_state_dict(state)
    with pytest.raises(FileFormatError, match="is a Ensemble, not a MCDropout"):
        MCDropout(classifier(0)).set_extra_state(state["_extra_state"])


def test_fit_reads_one_batch_and_learns_only_names():
    guarded = Ensemble(members()).fit([data(4)], classes=list("abcd"), progress=False)
    assert guarded.verdicts([data(3)], progress=False).nearest_class.dtype.kind == "U"
    with pytest.raises(InputError, match="leave classes out"):
        MCDropout(classifier(0), score="entropy").fit([data(4)], classes=list("abcd"), progress=False)


def test_an_exported_graph_asks_the_same_sub_networks(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    guarded = MCDropout(classifier(0), n_passes=3, score="mutual-information").calibrate([data(50)], progress=False)
    guarded.export_onnx(tmp_path / "guard.onnx")
    session, inputs = runtime.InferenceSession(tmp_path / "guard.onnx"), data(7, seed=3)
    (found,) = session.run(["score"], {session.get_inputs()[0].name: inputs.numpy()})
    np.testing.assert_allclose(found, guarded(inputs).score.detach(), rtol=1e-5)  # the exporter rounds constants

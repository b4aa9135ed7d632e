"""Input noise under every kind of detector, against steps derived by hand and by differences."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gem_ood import GEM, MSP, Energy, Mahalanobis  # noqa: E402
from gem_ood.detectors import MaxLogit  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402
from gem_ood.torch.noise import check_noise, with_noise  # noqa: E402

NOISE = 0.05
DETECTORS = {
    "gem": GEM(),
    "gem-normalized": GEM(normalize=True, covariance=0.1),
    "gem-relative": GEM(relative=True),
    "gem-weighted": GEM(priors="empirical"),
    "mahalanobis": Mahalanobis(),
    "mahalanobis-normalized": Mahalanobis(normalize=True, covariance=0.1),
    "energy": Energy(temperature=2.0),
    "msp": MSP(),
    "max-logit": MaxLogit(),
}


def network(activation):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 5), nn.Linear(5, 3)).double()


def data(n_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_rows) % 3
    return 2.0 * torch.randn(n_rows, 6, generator=generator, dtype=torch.float64) + labels[:, None], labels


def guard(name, model, **options):
    guarded = OODModel(model, copy.deepcopy(DETECTORS[name]), input_noise=NOISE, **options)
    return guarded.fit([data(200)], progress=False)


def rows_of(guarded, inputs):
    """What the detector takes, from arrays alone."""
    weights = {name: value.detach().numpy() for name, value in guarded.model.named_parameters()}
    hidden = inputs @ weights["0.weight"].T + weights["0.bias"]
    hidden = np.tanh(hidden) if isinstance(guarded.model[1], nn.Tanh) else hidden
    features = hidden @ weights["2.weight"].T + weights["2.bias"]
    return features @ weights["3.weight"].T + weights["3.bias"] if guarded.detector.reads_logits else features


@pytest.mark.parametrize("name", DETECTORS)
def test_the_step_follows_the_differences_of_the_array_score(name):
    guarded = guard(name, network(nn.Tanh()))
    inputs = data(20, seed=1)[0].numpy()
    rises = np.empty_like(inputs)
    for column in range(inputs.shape[1]):
        step = np.zeros(inputs.shape[1])
        step[column] = 1e-6
        above, below = (guarded.detector.score_samples(rows_of(guarded, inputs + sign * step)) for sign in (1, -1))
        rises[:, column] = above - below
    expected = guarded.detector.score_samples(rows_of(guarded, inputs + NOISE * np.sign(rises)))
    np.testing.assert_allclose(guarded(torch.from_numpy(inputs)).score.detach(), expected, rtol=1e-9)


def gradient_of_rows(name, rows, fit_rows, labels):
    """The score's gradient in features or logits, from the textbook's formulas."""
    if name == "energy":
        powers = np.exp(rows / 2.0 - (rows / 2.0).max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)
    if name == "msp":
        powers = np.exp(rows - rows.max(1, keepdims=True))
        return np.eye(3)[rows.argmax(1)] - powers / powers.sum(1, keepdims=True)
    means = np.stack([fit_rows[labels == label].mean(0) for label in range(3)])
    covariance = np.cov((fit_rows - means[labels]).T, bias=True)
    towards = (means - rows[:, None]) @ np.linalg.inv(covariance)
    distances = np.einsum("nkd,nkd->nk", means - rows[:, None], towards)
    if name.startswith("gem"):
        shares = np.exp(-0.5 * (distances - distances.min(1, keepdims=True)))
        found = np.einsum("nk,nkd->nd", shares / shares.sum(1, keepdims=True), towards)
    else:
        found = 2.0 * towards[np.arange(len(rows)), distances.argmin(1)]
    if name.endswith("relative"):
        found -= (fit_rows.mean(0) - rows) @ np.linalg.inv(np.cov(fit_rows.T, bias=True))
    return found


@pytest.mark.parametrize("name", ["gem", "gem-relative", "mahalanobis", "energy", "msp"])
def test_the_step_in_a_linear_network_is_the_one_derived_by_hand(name):
    guarded = guard(name, network(nn.Identity()))
    inputs, (fit_inputs, labels) = data(30, seed=2)[0].numpy(), (part.numpy() for part in data(200))
    rows = rows_of(guarded, inputs)
    gradient = gradient_of_rows(name, rows, rows_of(guarded, fit_inputs), labels)
    network_matrix = rows_of(guarded, np.eye(6)) - rows_of(guarded, np.zeros((1, 6)))
    expected = guarded.detector.score_samples(rows_of(guarded, inputs + NOISE * np.sign(gradient @ network_matrix.T)))
    np.testing.assert_allclose(guarded(torch.from_numpy(inputs)).score.detach(), expected, rtol=1e-9)
    assert (expected > guarded.detector.score_samples(rows)).mean() > 0.9  # the step is upwards


@pytest.mark.parametrize("name", DETECTORS)
def test_neither_batch_size_nor_order_changes_a_score(name):
    guarded = guard(name, network(nn.Tanh()))
    inputs = data(64, seed=3)[0]
    together = guarded(inputs).score.detach()
    alone = torch.cat([guarded(row[None]).score.detach() for row in inputs])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(alone, together, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(guarded(inputs[order]).score.detach(), together[order], rtol=1e-10, atol=0.0)


def test_inference_mode_frozen_weights_and_training_mode_change_nothing():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    guarded = OODModel(model, GEM(), input_noise=NOISE).fit([data(200)], progress=False)
    inputs = data(10, seed=4)[0]
    expected = guarded(inputs).score.detach()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    model.train().requires_grad_(False)
    with torch.inference_mode():
        torch.testing.assert_close(guarded(inputs.clone()).score, expected, rtol=0.0, atol=0.0)
    np.testing.assert_array_equal(guarded.score_samples([inputs], progress=False), expected)

    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.requires_grad_(True)
    guarded(inputs)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert inputs.grad is None
    assert not inputs.requires_grad


def test_logits_are_those_of_the_input_as_it_came():
    guarded = guard("gem", network(nn.Tanh()))
    inputs = data(4, seed=5)[0]
    torch.testing.assert_close(guarded(inputs).logits, guarded.model(inputs).detach(), rtol=0.0, atol=0.0)


def test_an_input_so_far_out_that_its_score_overflows_is_still_judged():
    guarded = guard("gem", network(nn.Identity()))
    far = torch.full((1, 6), 1e200, dtype=torch.float64)
    assert guarded(far).score.item() == -np.inf


def test_each_channel_has_its_own_step():
    images = torch.zeros(2, 3, 4, 4)
    (moved,), _ = with_noise(
        (images,), {}, lambda args, kwargs: args[0].sum((1, 2, 3)), noise=0.1, channel_std=(0.5, 1.0, 2.0)
    )
    torch.testing.assert_close(moved[1, :, 0, 0], torch.tensor([0.2, 0.1, 0.05]))
    with pytest.raises(InputError, match="channel_std has 2 numbers but the input has 3 channels"):
        with_noise((images,), {}, lambda args, kwargs: args[0].sum((1, 2, 3)), noise=0.1, channel_std=(1.0, 1.0))


@pytest.mark.parametrize("name", ["gem", "msp"])
def test_a_model_that_begins_in_place_is_moved_as_one_that_does_not(name):
    plain, inplace = (nn.Sequential(nn.ReLU(inplace=inplace), *network(nn.Tanh())) for inplace in (False, True))
    batches, inputs = [data(200)], data(10, seed=6)[0]
    expected = OODModel(plain, copy.deepcopy(DETECTORS[name]), input_noise=NOISE).fit(batches, progress=False)(inputs)
    given = inputs.clone()
    found = OODModel(inplace, copy.deepcopy(DETECTORS[name]), input_noise=NOISE).fit([data(200)], progress=False)(given)
    torch.testing.assert_close(found.score, expected.score, rtol=0.0, atol=0.0)
    torch.testing.assert_close(given, inputs, rtol=0.0, atol=0.0)


def test_other_inputs_go_along_unmoved():
    mask, rows = torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3)

    def rising(args, kwargs):
        return (kwargs["rows"] * kwargs["mask"]).sum(1)

    _, moved = with_noise((), {"rows": rows, "mask": mask}, rising, noise=1.0)
    assert moved["mask"] is mask
    assert moved["rows"].tolist() == [[2.0] * 3] * 2
    assert rows.tolist() == [[1.0] * 3] * 2


def test_a_gradient_that_is_not_a_number_makes_no_step():
    rows = torch.tensor([[0.0, 4.0]])  # the root's slope at 0, times 0, is not a number
    (moved,), _ = with_noise(
        (rows,), {}, lambda args, kwargs: (args[0].sqrt() * torch.tensor([0.0, 1.0])).sum(1), noise=1.0
    )
    assert moved.tolist() == [[0.0, 5.0]]


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.linear(self.embedding(ids).mean(1))


class Detached(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.linear, self.how = nn.Linear(6, 3), how

    def forward(self, rows):
        if self.how == "no-grad":
            with torch.no_grad():
                return self.linear(rows)
        return self.linear(rows.detach())


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, left, right):
        return self.linear(left + right)


def test_token_ids_are_refused():
    with pytest.raises(InputError, match=r"moves one floating-point input, but 0 came among \(torch.int64\)"):
        OODModel(Tokens(), Energy(), input_noise=0.1)(torch.zeros(2, 5, dtype=torch.int64))


def test_two_floating_point_inputs_are_refused():
    with pytest.raises(InputError, match="but 2 came among"):
        OODModel(TwoInputs(), Energy(), input_noise=0.1)(torch.zeros(1, 2), torch.zeros(1, 2))


@pytest.mark.parametrize("how", ["no-grad", "detach"])
def test_a_model_that_lets_no_gradient_through_is_refused(how):
    with pytest.raises(InputError, match="none passes from the score back to the input"):
        OODModel(Detached(how), Energy(), input_noise=0.1)(torch.zeros(2, 6))


def test_a_model_made_in_inference_mode_is_refused():
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    with pytest.raises(InputError, match="holds tensors that were made under"):
        OODModel(model, Energy(), input_noise=0.1)(torch.zeros(2, 6))


class Halved(Energy):
    """A detector that has no form in tensors."""


def test_a_detector_without_gradients_is_refused():
    with pytest.raises(InputError, match="input noise needs gradients"):
        OODModel(network(nn.Tanh()), Halved(), input_noise=0.1)(data(2)[0])


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_what_is_no_size_of_a_step_is_refused(noise):
    with pytest.raises(InputError, match="pass a number of at least 0"):
        check_noise(noise, None)


@pytest.mark.parametrize(
    "channel_std",
    [(0.0,), (1.0, -1.0), (float("nan"),), (float("inf"),), 0.5, ["a"], "abc", np.ones((2, 3)), torch.ones(2, 3)],
    ids=["zero", "negative", "NaN", "infinite", "one number", "letters", "text", "matrix", "matrix of PyTorch"],
)
def test_what_divided_no_channel_is_refused(channel_std):
    with pytest.raises(InputError, match="pass the positive number that divided each channel"):
        check_noise(0.1, channel_std)

"""ODIN and GradNorm: against the papers' formulas, one row at a time, and as guards with every verb."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import gem_ood  # noqa: E402
from gem_ood import MSP, scores  # noqa: E402
from gem_ood.errors import FileFormatError, InputError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402
from gem_ood.torch import row_gradients as room  # noqa: E402
from gem_ood.torch.ensembles import Ensemble  # noqa: E402
from gem_ood.torch.gradients import ODIN, GradNorm  # noqa: E402


class Block(nn.Module):
    """A residual block that writes in place, as real ones do."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)

    def forward(self, maps):
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(maps)))))
        out += maps
        return self.relu(out)


class Network(nn.Module):
    """A small classifier of images with a layer of every kind."""

    def __init__(self, bias=True):
        super().__init__()
        self.stem, self.norm, self.block = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), Block()
        self.drop, self.hidden = nn.Dropout(0.5), nn.Linear(4, 7)
        self.scale, self.linear = nn.LayerNorm(7), nn.Linear(7, 5, bias=bias)

    def forward(self, images):
        maps = torch.relu_(self.norm(self.stem(images)))
        features = self.drop(self.block(maps).mean((2, 3)))
        return self.linear(self.scale(torch.tanh(self.hidden(features))))


def network(seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    model = Network(**options).to(dtype)
    for part in (model.norm, model.block.norm1, model.block.norm2, model.scale):
        nn.init.normal_(part.weight)
        nn.init.normal_(part.bias)
    for part in (model.norm, model.block.norm1):
        part.running_mean.normal_()
        part.running_var.uniform_(0.5, 2.0)
    for part in (model.stem, model.hidden, model.linear):
        part.weight.data.mul_(4.0)  # so that logits differ between inputs as much as those of a trained network
    return model


def images(n_rows, seed=0, dtype=torch.float64):
    return torch.randn(n_rows, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def one_row_at_a_time(model, layer, inputs, temperature=1.0):
    """The paper's loop: one backward pass per input, then the sum of |gradient| of the weights."""
    model, norms = copy.deepcopy(model).eval().requires_grad_(True), []
    for row in inputs:
        model.zero_grad()
        probabilities = (model(row[None]) / temperature).log_softmax(1)
        (-probabilities.mean()).backward()
        parameters = model.get_submodule(layer).named_parameters()
        norms.append(sum(weight.grad.abs().sum() for name, weight in parameters if "bias" not in name))
    return torch.stack(norms)


GUARDS = {
    "odin": lambda model: ODIN(model, temperature=10.0, noise=0.01),
    "odin-without-noise": lambda model: ODIN(model, noise=0.0),
    "odin-by-channel": lambda model: ODIN(model, channel_std=(0.2, 0.3, 0.4)),
    "grad-norm": GradNorm,
    "grad-norm-block": lambda model: GradNorm(model, "block", temperature=2.0),
}


@pytest.fixture(params=GUARDS, scope="module")
def calibrated(request):
    return GUARDS[request.param](network()).calibrate([images(120), images(80, seed=1)], progress=False)


# ODIN


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_odin_is_the_papers_formula(temperature):
    model, inputs, noise = network().eval(), images(8), 0.02
    expected = []
    for row in inputs:
        leaf = row[None].clone().requires_grad_()
        logits = model(leaf) / temperature
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))  # −log S, as in the authors' code
        (gradient,) = torch.autograd.grad(loss, leaf)
        expected.append((model(leaf - noise * gradient.sign()) / temperature).softmax(1).max().detach())
    result = ODIN(model, temperature=temperature, noise=noise)(inputs)
    torch.testing.assert_close(result.score.detach(), torch.stack(expected), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(result.logits, model(inputs).detach(), rtol=0.0, atol=0.0)


def test_odin_without_noise_is_msp_at_that_temperature():
    model, inputs = network().eval(), images(8)
    expected = scores.msp(model(inputs).detach().numpy(), temperature=50.0)
    np.testing.assert_allclose(ODIN(model, temperature=50.0, noise=0.0)(inputs).score.detach(), expected, rtol=1e-13)


def test_odin_divides_the_step_of_each_channel():
    model, inputs, std = network().eval(), images(8), (0.2, 0.3, 0.4)
    leaf = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((model(leaf) / 1000.0).log_softmax(1).max(1).values.sum(), leaf)
    moved = inputs + 0.01 * gradient.sign() / torch.tensor(std, dtype=torch.float64)[:, None, None]
    expected = (model(moved) / 1000.0).softmax(1).max(1).values
    found = ODIN(model, noise=0.01, channel_std=std)(inputs).score
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-13, atol=0.0)


# GradNorm


@pytest.mark.parametrize(
    "layer", ["stem", "norm", "block", "block.conv1", "block.conv2", "block.norm2", "hidden", "scale", "linear"]
)
def test_autograd_equals_the_loop_over_rows_for_every_kind_of_layer(layer):
    model, inputs = network(), images(9)
    found = GradNorm(model, layer, temperature=3.0, method="autograd")(inputs).score
    torch.testing.assert_close(found, one_row_at_a_time(model, layer, inputs, 3.0), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("bias", [True, False])
def test_closed_form_and_autograd_agree_on_the_last_layer(dtype, tolerance, bias):
    model, inputs = network(dtype=dtype, bias=bias), images(40, dtype=dtype)
    closed = GradNorm(model, method="closed-form", temperature=2.0)(inputs)
    recorded = GradNorm(model, method="autograd", temperature=2.0)(inputs)
    torch.testing.assert_close(closed.score, recorded.score, rtol=tolerance, atol=0.0)
    torch.testing.assert_close(closed.nearest_class, model.eval()(inputs).argmax(1))


def test_the_closed_form_is_the_array_score_of_features_and_logits():
    model, inputs, kept = network().eval(), images(10), []
    model.linear.register_forward_pre_hook(lambda layer, args: kept.append(args[0].detach()))
    logits = model(inputs).detach()
    expected = scores.grad_norm(kept[0].numpy(), logits.numpy(), temperature=2.0)
    np.testing.assert_allclose(GradNorm(model, temperature=2.0)(inputs).score, expected, rtol=1e-13)


def test_auto_takes_the_last_linear_layer_in_closed_form_and_others_by_autograd(monkeypatch):
    model, inputs = network(), images(3)
    hidden = GradNorm(model, "hidden")
    torch.testing.assert_close(hidden(inputs).score, one_row_at_a_time(model, "hidden", inputs), rtol=1e-12, atol=0.0)
    monkeypatch.setattr(GradNorm, "_by_autograd", None)
    last = GradNorm(model)
    torch.testing.assert_close(last(inputs).score, one_row_at_a_time(model, "linear", inputs), rtol=1e-12, atol=0.0)
    assert last.layer == "linear"


def test_the_closed_form_is_refused_where_the_layer_does_not_give_the_logits():
    with pytest.raises(InputError, match="pass method='autograd'"):
        GradNorm(network(), "hidden", method="closed-form")(images(2))
    softened = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()
    inputs = torch.randn(5, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="only that one has a closed form"):
        GradNorm(softened, method="closed-form")(inputs)
    found = GradNorm(softened)(inputs).score
    torch.testing.assert_close(found, one_row_at_a_time(softened, "0", inputs), rtol=1e-12, atol=0.0)


def positive(last, *, seed=0):
    """Return a classifier whose last linear layer is followed by something that changes negative logits only."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), last).double()
    model[0].weight.data.abs_()
    return model


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("is_seen_first", [False, True])
def test_neither_the_batch_nor_the_batches_before_decide_the_method(inplace, is_seen_first):
    model = positive(nn.ReLU(inplace=inplace))
    inputs = torch.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.1, 0.2, 0.1], [1e9, 1e9, 1e9, 1e9]], dtype=torch.float64)
    guarded = GradNorm(model)
    if is_seen_first:
        guarded(inputs[:1])  # its logits are positive, so a ReLU leaves them as they are
    together = guarded(inputs).score
    torch.testing.assert_close(together, one_row_at_a_time(model, "0", inputs), rtol=1e-12, atol=0.0)
    alone = torch.cat([guarded(row[None]).score for row in inputs])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=0.0)
    with pytest.raises(InputError, match="pass method='autograd'"):
        GradNorm(model, method="closed-form")(inputs[:1])


class Copied(nn.Module):
    def forward(self, logits):
        return logits.float().clone().view(len(logits), -1).double()


class Unrecorded(nn.Module):
    """A classifier that records no graph, with or without something after its linear layer."""

    def __init__(self, mode, last):
        super().__init__()
        self.mode, self.inner = mode, positive(last)

    def forward(self, rows):
        with self.mode():
            return self.inner(rows)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_without_a_graph_has_the_closed_form_where_its_output_is_the_layers(mode):
    inputs = torch.randn(5, 4, dtype=torch.float64)
    expected = one_row_at_a_time(positive(nn.Identity()), "0", inputs)
    found = GradNorm(Unrecorded(mode, nn.Identity()), method="closed-form")(inputs).score
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)
    for last in (nn.ReLU(inplace=True), nn.ReLU(), nn.Tanh()):
        with pytest.raises(InputError, match=r"no gradient passes|inference"):
            GradNorm(Unrecorded(mode, last))(inputs)


def test_copies_of_the_logits_leave_the_closed_form_as_it_is():
    model, inputs = positive(Copied()), torch.randn(5, 4, dtype=torch.float64)
    found = GradNorm(model, method="closed-form")(inputs).score
    torch.testing.assert_close(found, one_row_at_a_time(model, "0", inputs), rtol=1e-6, atol=0.0)


class Halved(nn.Linear):
    def forward(self, rows):
        return super().forward(rows) / 2.0


class Folded(nn.Module):
    """A layer that runs on two rows per input, whose outputs side by side are the logits."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3).double()

    def forward(self, rows):
        return self.linear(rows.reshape(-1, 2)).view(len(rows), 6)


def hooked():
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda layer, args, output: output * 2.0)
    return layer


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Sequential(Halved(4, 3)), "0"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))), "0"),
        (lambda: nn.Sequential(hooked()), "0"),
        (Folded, "linear"),
    ],
    ids=["its own forward", "its own weights", "a hook", "two rows per input"],
)
def test_a_linear_layer_that_is_not_plain_has_no_closed_form(make, name):
    torch.manual_seed(0)
    model, inputs = make().double(), torch.randn(5, 4, dtype=torch.float64)
    found, expected = GradNorm(model, name)(inputs).score, one_row_at_a_time(model, name, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)
    with pytest.raises(InputError, match="pass method='autograd'"):
        GradNorm(model, name, method="closed-form")(inputs)


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("is_seen_first", [False, True])
def test_a_batch_without_inputs_has_an_answer_without_rows(name, is_seen_first):
    guarded = GUARDS[name](network())
    if is_seen_first:
        guarded(images(3))
    result = guarded(images(0))
    assert (result.logits.shape, result.score.shape, result.nearest_class.shape) == ((0, 5), (0,), (0,))
    assert guarded(images(3)).score.shape == (3,)


def test_memory_is_bounded_by_chunks_that_change_nothing(monkeypatch):
    model, inputs = network(), images(7)
    whole = GradNorm(model, "block")(inputs).score
    monkeypatch.setattr(room, "CHUNK_BYTES", 5_000)
    sizes, vmap = [], torch.func.vmap

    def counted(run):
        def over(*rows):
            sizes.append(len(rows[1][0]))
            return vmap(run)(*rows)

        return over

    monkeypatch.setattr(torch.func, "vmap", counted)
    torch.testing.assert_close(GradNorm(model, "block")(inputs).score, whole, rtol=1e-13, atol=0.0)
    assert len(sizes) > 1
    assert sum(sizes) == 7


class Recurrent(nn.Module):
    """A sequence classifier whose layer vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.linear = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, rows):
        return self.linear(self.recurrent(rows)[0][:, -1])


class Branching(nn.Module):
    """A layer that looks at its numbers, which vmap refuses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.float64))

    def forward(self, rows):
        return rows * self.weight if float(rows.abs().sum()) > 0.0 else rows * self.weight * 2.0


def test_layers_that_vmap_cannot_follow_are_followed_row_by_row():
    torch.manual_seed(0)
    recurrent, branching = Recurrent().double(), nn.Sequential(Branching(), nn.Tanh(), nn.Linear(4, 3)).double()
    for model, layer, inputs in (
        (recurrent, "recurrent", torch.randn(4, 5, 3, dtype=torch.float64)),
        (branching, "0", torch.randn(4, 4, dtype=torch.float64)),
    ):
        found = GradNorm(model, layer)(inputs).score
        torch.testing.assert_close(found, one_row_at_a_time(model, layer, inputs), rtol=1e-12, atol=0.0)


class Encoder(nn.Module):
    """A transformer that keeps inputs along the first axis or along the second."""

    def __init__(self, batch_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=batch_first)
        self.embedding, self.encoder = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.batch_first, self.linear = batch_first, nn.Linear(8, 3)

    def forward(self, ids):
        tokens = self.embedding(ids)
        if self.batch_first:
            return self.linear(self.encoder(tokens).mean(1))
        return self.linear(self.encoder(tokens.transpose(0, 1)).mean(0))


@pytest.mark.parametrize(
    "layer", ["embedding", "encoder.layers.0", "encoder.layers.1.self_attn", "encoder.layers.1.linear1"]
)
def test_layers_of_a_transformer_have_a_gradient_for_each_input(layer):
    torch.manual_seed(1)
    model, ids = Encoder(batch_first=True).double(), torch.randint(0, 9, (4, 6))
    found = GradNorm(model, layer)(ids).score
    torch.testing.assert_close(found, one_row_at_a_time(model, layer, ids), rtol=1e-11, atol=0.0)


@pytest.mark.parametrize("length", [4, 6, 8])
def test_inputs_along_another_axis_are_refused_and_come_one_by_one(length):
    torch.manual_seed(1)
    model, layer = Encoder(batch_first=False).double(), "encoder.layers.1.linear1"
    ids = torch.randint(0, 9, (4, length))
    with pytest.raises(InputError, match="batches of 1"):
        GradNorm(model, layer)(ids)
    found = torch.cat([GradNorm(model, layer)(row[None]).score for row in ids])
    torch.testing.assert_close(found, one_row_at_a_time(model, layer, ids), rtol=1e-11, atol=0.0)


class Windows(nn.Module):
    """Each input becomes three rows of the layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.linear = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, rows):
        return self.linear(torch.tanh(self.inner(rows.reshape(-1, 2))).reshape(-1, 3, 4).sum(1))


def test_a_layer_that_sees_several_rows_per_input_counts_them_together():
    torch.manual_seed(2)
    model, inputs = Windows().double(), torch.randn(5, 6, dtype=torch.float64)
    found = GradNorm(model, "inner")(inputs).score
    torch.testing.assert_close(found, one_row_at_a_time(model, "inner", inputs), rtol=1e-12, atol=0.0)


class Mixing(nn.Module):
    """A layer in which rows see each other."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, rows):
        return (rows - rows.mean(0)) * self.weight


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused, self.linear = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows):
        return self.linear(torch.relu(self.linear(rows)))


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.linear = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows):
        return self.linear(self.inner(rows).detach())


@pytest.mark.parametrize(
    ("model", "layer", "message"),
    [
        (Reused, "linear", "'linear' ran 2 times"),
        (Reused, "auto", "'linear' ran 2 times"),
        (Reused, "unused", "'unused' .*not at all"),
        (Cut, "inner", "no gradient passes from the logits back to layer 'inner'"),
        (lambda: nn.Sequential(Mixing(), nn.Linear(4, 3)), "0", "other outputs for a row alone|cannot be told apart"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "1", "without weights"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "2", "no layer of Sequential"),
        (lambda: nn.Sequential(nn.Conv1d(4, 3, 1), nn.Flatten()), "auto", "no linear layer"),
    ],
)
@pytest.mark.parametrize("method", ["auto", "autograd"])
def test_a_layer_without_one_gradient_per_input_is_refused(model, layer, message, method):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=message):
        GradNorm(model(), layer, method=method)(torch.randn(3, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: GradNorm(model, method="exact"), "pass 'auto', 'closed-form' or 'autograd'"),
        (lambda model: GradNorm(model, temperature=0.0), "positive number"),
        (lambda model: GradNorm(model, layer=len), "name of a layer"),
        (lambda model: ODIN(model, temperature=-1.0), "positive number"),
        (lambda model: ODIN(model, noise=-1.0), "at least 0"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make(network())


def test_the_closed_form_can_be_exported(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = network(dtype=torch.float32)  # onnxruntime has no convolution in float64
    guarded = GradNorm(model).calibrate([images(50, dtype=torch.float32)], progress=False)
    guarded.export_onnx(tmp_path / "guard.onnx")
    session, inputs = runtime.InferenceSession(tmp_path / "guard.onnx"), images(7, seed=3, dtype=torch.float32)
    (found,) = session.run(["score"], {session.get_inputs()[0].name: inputs.numpy()})
    np.testing.assert_allclose(found, guarded(inputs).score, rtol=1e-5)


# All of them, as guards


@pytest.mark.parametrize("name", GUARDS)
def test_neither_batch_size_nor_order_changes_a_score(name):
    guarded, inputs = GUARDS[name](network()), images(64)
    together = guarded(inputs).score.detach()
    alone = torch.cat([guarded(row[None]).score.detach() for row in inputs])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(alone, together, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(guarded(inputs[order]).score.detach(), together[order], rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("name", GUARDS)
def test_the_model_is_left_as_it_was(name):
    model, inputs = network().train(), images(5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = GUARDS[name](copy.deepcopy(model).eval())(inputs).score.detach()
    model.requires_grad_(False)
    with torch.inference_mode():
        frozen = GUARDS[name](model)(inputs.clone()).score
    model.requires_grad_(True)
    torch.testing.assert_close(frozen, expected, rtol=0.0, atol=0.0)
    torch.testing.assert_close(GUARDS[name](model)(inputs).score.detach(), expected, rtol=0.0, atol=0.0)
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_threads_that_share_a_model_do_not_disturb_each_other():
    guarded = GradNorm(network(), "block")
    batches = [images(6, seed=seed) for seed in range(8)]
    expected = [guarded(batch).score for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: guarded(batch).score, batches))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0.0)


def test_at_most_a_twentieth_of_the_calibration_inputs_is_out(calibrated):
    result = calibrated(torch.cat([images(120), images(80, seed=1)]))
    assert result.is_ood.double().mean() <= 0.05
    assert result.is_ood.any()
    assert result.p_value.min() > 0.0
    verdicts = calibrated.verdicts([images(120), images(80, seed=1)], progress=False)
    np.testing.assert_array_equal(verdicts.is_ood, result.is_ood)


def test_a_saved_guard_comes_back_whole(calibrated, tmp_path):
    path, inputs = tmp_path / "guard.safetensors", images(9, seed=2)
    calibrated.save(path)
    expected = calibrated(inputs)
    for kind in (type(calibrated), OODModel):
        loaded = kind.load(network(), path)
        assert type(loaded) is type(calibrated)
        assert loaded._settings() == calibrated._settings()
        for one, other in zip(loaded(inputs), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_a_state_dict_and_a_copy_hold_the_guard(calibrated):
    inputs = images(9, seed=2)
    expected = calibrated(inputs)
    other = copy.deepcopy(calibrated)
    other.detector.calibrate(tpr=0.5)
    other.load_state_dict(calibrated.state_dict())
    for guarded in (copy.deepcopy(calibrated), other):
        assert guarded.model is not calibrated.model
        for one, two in zip(guarded(inputs), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=0.0, atol=0.0)


def test_the_file_of_another_guard_is_refused(tmp_path):
    GradNorm(network()).calibrate([images(50)], progress=False).save(tmp_path / "guard.safetensors")
    with pytest.raises(FileFormatError, match=r"gem_ood.torch.GradNorm.load"):
        ODIN.load(network(), tmp_path / "guard.safetensors")
    gem_ood.Energy().fit(np.eye(5)).save(tmp_path / "energy.safetensors")
    with pytest.raises((FileFormatError, InputError), match="a ODIN scores otherwise than a detector by itself"):
        ODIN.load(network(), tmp_path / "energy.safetensors")


def test_odin_loads_with_the_temperature_of_its_detector(tmp_path):
    ODIN(network(), temperature=7.0).calibrate([images(50)], progress=False).save(tmp_path / "guard.safetensors")
    assert ODIN.load(network(), tmp_path / "guard.safetensors").temperature == 7.0
    assert isinstance(gem_ood.load(tmp_path / "guard.safetensors"), MSP)


def test_fit_reads_one_batch_and_learns_only_names():
    batches = iter([images(4), images(4, seed=1)])
    guarded = ODIN(network()).fit(batches, classes=list("abcde"), progress=False)
    assert len(list(batches)) == 1
    assert guarded.detector.classes_.tolist() == list("abcde")
    assert GradNorm(network()).fit([images(4)], progress=False)(images(2)).p_value is None
    with pytest.raises(InputError, match="leave classes out"):
        GradNorm(network()).fit([images(4)], classes=list("abcde"), progress=False)
    with pytest.raises(InputError, match="empty"):
        ODIN(network()).fit([], progress=False)


@pytest.mark.parametrize(
    "make", [ODIN, GradNorm, lambda model: Ensemble([model, network(1)])], ids=["odin", "grad-norm", "ensemble"]
)
def test_a_fit_on_many_ranks_asks_for_the_other_ranks(make):
    with pytest.raises(InputError, match="no process group"):
        make(network()).fit([images(4)], progress=False, distributed=True)


@pytest.fixture
def only_rank():
    """A process group of one rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


SYNCHRONIZED = {name: GUARDS[name] for name in ("odin", "grad-norm", "grad-norm-block")} | {
    "ensemble": lambda model: Ensemble([model, network(1)])
}


@pytest.mark.parametrize("name", SYNCHRONIZED)
@pytest.mark.usefixtures("only_rank")
def test_a_synchronized_model_does_not_wait_for_the_other_ranks(name, monkeypatch):
    from torch.nn.parallel import DistributedDataParallel

    def waits_for_ever(*args, **kwargs):
        raise AssertionError("this would wait for ranks that have no rows")

    monkeypatch.setattr(DistributedDataParallel, "forward", waits_for_ever)
    make = SYNCHRONIZED[name]
    found, expected = make(DistributedDataParallel(network()))(images(5)), make(network())(images(5))
    torch.testing.assert_close(found.score, expected.score, rtol=0.0, atol=0.0)


def test_the_parameters_behind_a_parametrized_weight_count():
    model = network()
    nn.utils.parametrizations.weight_norm(model.linear)
    found = GradNorm(model, "linear")(images(6)).score
    torch.testing.assert_close(found, one_row_at_a_time(model, "linear", images(6)), rtol=1e-9, atol=0.0)
    assert (found - GradNorm(network(), "linear")(images(6)).score).abs().min() > 1e-3


def test_inputs_that_give_no_number_are_refused():
    broken = images(3)
    broken[1] = np.nan
    for make in GUARDS.values():
        with pytest.raises(InputError, match="row 1, column 0 is NaN"):
            make(network())(broken)

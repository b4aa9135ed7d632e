"""Features are those of the layer asked for, read while the model runs, from any model that has one."""

import copy
import gc
import threading
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import ConvNet, blobs, features_of, hook_counts, mlp, training_flags  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from gem_ood import GEM, MSP  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402
from gem_ood.torch.batches import logits_of  # noqa: E402
from gem_ood.torch.layers import FeatureReader, _Capture  # noqa: E402
from gem_ood.torch.modes import evaluating, unwrapped, without_compilation  # noqa: E402
from gem_ood.torch.pooling import pooled  # noqa: E402


def read(model, inputs, layer="auto", **options):
    """Return the features that a guard reads and the name of the layer that it found."""
    guarded = OODModel(model, GEM(), layer, **options)
    rows, labels = guarded.features([inputs], progress=False)
    assert labels is None
    assert hook_counts(model) == 0
    return torch.tensor(rows), guarded.layer


@pytest.fixture
def images():
    return torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))


class Backwards(nn.Module):
    """Layers run in the opposite order of their definition."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.middle, self.first = nn.Linear(5, 3), nn.Linear(6, 5), nn.Linear(4, 6)

    def forward(self, inputs):
        return self.last(torch.tanh(self.middle(torch.relu(self.first(inputs)))))


def test_auto_takes_the_input_of_the_linear_layer_that_gives_the_logits_not_of_the_one_defined_last():
    model, inputs = Backwards(), blobs(10)[0]
    found, name = read(model, inputs)
    assert name == "last"
    assert torch.equal(found, torch.tanh(model.middle(torch.relu(model.first(inputs)))).detach())


def test_the_layer_is_known_after_a_pass_and_the_width_of_an_only_one_before(images):
    for model in (ConvNet(), mlp()):
        assert OODModel(model, GEM()).layer is None
    assert [FeatureReader(model, "auto", "mean").width for model in (ConvNet(), mlp())] == [5, None]
    assert FeatureReader(mlp(), "3", "mean").width == 8
    assert read(mlp(), blobs(4)[0])[1] == "5"
    model = ConvNet()
    assert torch.equal(read(model, images)[0], model.block(images).mean((2, 3)).detach())


def test_a_model_that_is_one_linear_layer_has_its_inputs_as_features():
    inputs = blobs(10)[0]
    found, _ = read(nn.Linear(4, 3), inputs)
    assert torch.equal(found, inputs)


def test_a_detector_of_another_width_is_refused_before_a_pass_where_there_is_one_linear_layer():
    with pytest.raises(InputError, match=r"the model has 5 features .* but this GEM was fitted to 6"):
        OODModel(ConvNet(), as_fitted(torch.zeros(1, 6)))


class Auxiliary(nn.Module):
    """A second head that runs after the first and has as many outputs."""

    def __init__(self, finish=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.auxiliary = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(4, 3)
        self.finish = finish

    def forward(self, inputs):
        logits = self.finish(self.head(torch.relu(self.body(inputs))))
        return logits, self.auxiliary(inputs)


@pytest.mark.parametrize("is_attached", [False, True], ids=["hooks per pass", "attached"])
def test_auto_takes_the_layer_whose_output_is_the_logits_not_the_one_that_runs_last(is_attached):
    model, inputs = Auxiliary(), blobs(10)[0]
    guarded = OODModel(model, GEM())
    if is_attached:
        guarded.attach()
    for part in (inputs, inputs[:4]):
        assert np.array_equal(guarded.features([part])[0], torch.relu(model.body(part)).detach())
    assert guarded.layer == "head"
    guarded.detach()


class Finished(nn.Module):
    """Something comes between the head and the logits."""

    def __init__(self, finish):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.more, self.finish = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(4, 7), finish

    def forward(self, inputs):
        return self.finish(self.head(torch.relu(self.body(inputs)))), self.more(inputs)


@pytest.mark.parametrize(
    "finish",
    [lambda logits: logits.log_softmax(1), lambda logits: 2.0 * logits, lambda logits: logits.clone()],
    ids=["log-softmax", "scaled", "copied"],
)
def test_where_the_logits_are_no_layers_output_the_only_layer_with_as_many_columns_is_taken(finish):
    model, inputs = Finished(finish), blobs(10)[0]
    found, name = read(model, inputs)
    assert name == "head"
    assert torch.equal(found, torch.relu(model.body(inputs)).detach())


class FunctionalHead(nn.Module):
    """Hidden linear layers below a head that is no layer."""

    def __init__(self, *widths):
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Sequential(*(nn.Linear(*pair) for pair in zip((4, *widths), widths, strict=False)))
        self.weight = nn.Parameter(torch.randn(3, widths[-1]))

    def forward(self, inputs):
        return functional.linear(self.hidden(inputs), self.weight)


def test_inputs_of_layers_that_cannot_win_are_not_kept_until_the_pass_ends():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(6)), nn.Linear(5, 3))
    kept = []
    reader = FeatureReader(model, "auto", "mean-token")
    reader.attach()
    probe = model[6].register_forward_pre_hook(
        lambda module, args: kept.extend(
            name for name, run in next(iter(reader._attached._seen.values())).items() if run.features is not None
        )
    )
    reader.run(model, (torch.randn(2, 7, 5),), {}, lambda output: logits_of(output[:, 0]))
    assert kept == []
    probe.remove()
    reader.detach()


def test_a_named_linear_layer_gives_its_input():
    model, inputs = mlp(), blobs(10)[0]
    assert torch.equal(read(model, inputs, "3")[0], features_of(model, inputs, last=3))


def test_any_other_named_layer_gives_its_output():
    model, inputs = mlp(), blobs(10)[0]
    assert torch.equal(read(model, inputs, "2")[0], features_of(model, inputs, last=3))


def test_spatial_maps_are_averaged_over_their_positions(images):
    model = ConvNet()
    found, name = read(model, images, "block")
    assert name == "block"
    torch.testing.assert_close(found, model.block(images).mean((2, 3)).detach())


def test_volumes_are_averaged_over_their_positions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(1, 4, 2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))
    volumes = torch.randn(5, 1, 4, 5, 6)
    torch.testing.assert_close(read(model, volumes, "0")[0], model[0](volumes).mean((2, 3, 4)).detach())


def overwritten():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, 3)).eval()


def test_what_a_layer_gave_is_read_before_the_next_overwrites_it(images):
    model = overwritten()
    expected = model[:2](images).mean((2, 3)).detach()
    assert expected.min() < 0.0
    torch.testing.assert_close(read(model, images, "1")[0], expected)
    with OODModel(model, as_fitted(expected), "1") as guarded:
        compiled = torch.compile(guarded, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(images).score, guarded(images).score)
        moved = images.clone().requires_grad_()
        guarded(moved).score.sum().backward()
        assert moved.grad.abs().sum() > 0.0
    torch.compiler.reset()


def as_fitted(rows):
    """Return a detector for rows of this width, fitted to noise."""
    labels = np.arange(60) % 3
    return GEM(covariance=0.1).fit(np.random.default_rng(0).normal(size=(60, rows.shape[1])), labels)


class Wiped(nn.Module):
    """Features are overwritten once the head has read them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, inputs):
        features = self.body(inputs)
        logits = self.head(features)
        features.detach().mul_(0.0)
        return logits


@pytest.mark.parametrize("layer", ["auto", "head", "body"])
def test_what_a_linear_layer_took_is_read_before_the_model_overwrites_it(layer):
    model, inputs = Wiped(), blobs(10)[0]
    expected = inputs if layer == "body" else model.body(inputs).detach()
    assert torch.equal(read(model, inputs, layer)[0], expected)


@pytest.mark.parametrize("layer", [0, 1, 2], ids=["convolution", "normalization", "pooling"])
def test_positions_in_one_dimension_are_averaged_where_the_layer_has_them_last(layer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(16, 3)).eval()
    signals = torch.randn(5, 2, 10)
    torch.testing.assert_close(read(model, signals, str(layer))[0], model[: layer + 1](signals).mean(2).detach())


def test_three_axes_that_may_be_tokens_or_positions_are_refused_with_both_readings():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    signals = torch.randn(5, 2, 10)
    with pytest.raises(InputError, match=r"'mean-token' if .* tokens .*, lambda maps: maps\.mean\(2\) if .* positions"):
        read(model, signals, "1")
    found = read(model, signals, "1", pool=lambda maps: maps.mean(2))[0]
    torch.testing.assert_close(found, torch.relu(model[0](signals)).mean(2).detach())


class Positions(nn.Module):
    """A linear head at every position, whose logits are averaged; channels come last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(7, 3)

    def forward(self, maps):
        return self.head(maps).mean((1, 2))


def test_positions_before_the_channels_of_a_linear_layer_are_averaged_too():
    maps = torch.randn(5, 4, 4, 7)
    found, _ = read(Positions(), maps)
    torch.testing.assert_close(found, maps.mean((1, 2)))


class Tokens(nn.Module):
    """A sequence model that classifies every token's vector and keeps the first answer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.head(self.embed(tokens))[:, 0]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("first-token", lambda vectors: vectors[:, 0]),
        ("last-token", lambda vectors: vectors[:, -1]),
        ("mean-token", lambda vectors: vectors.mean(1)),
        (lambda vectors: vectors.amax(1), lambda vectors: vectors.amax(1)),
    ],
    ids=["first", "last", "mean", "function"],
)
def test_tokens_become_one_row_as_asked(pool, expected):
    model, tokens = Tokens(), torch.arange(12).view(3, 4) % 9
    for layer in ("auto", "embed"):
        assert torch.equal(read(model, tokens, layer, pool=pool)[0], expected(model.embed(tokens)).detach())


class Masked(nn.Module):
    """Tokens with padding among them, which the model is told of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, tokens, attention_mask):
        vectors = self.embed(tokens)
        weights = attention_mask[:, :, None].to(vectors.dtype)
        return (self.head(vectors) * weights).sum(1)


#: Sequences of 4, 2 and 3 tokens, padded after, before, and on both sides.
MASK = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 0]])
TOKENS = torch.arange(15).view(3, 5) % 9


@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.double()], ids=["whole", "boolean", "real"])
@pytest.mark.parametrize("pool", ["first-token", "last-token", "mean-token"])
def test_padding_is_no_token(pool, mask):
    model = Masked()
    expected = []
    for tokens, is_token in zip(TOKENS, MASK.bool(), strict=True):
        vectors = model.embed(tokens[is_token])
        expected.append({"first-token": vectors[0], "last-token": vectors[-1], "mean-token": vectors.mean(0)}[pool])
    for layer in ("auto", "embed", lambda output: model.embed(TOKENS)):
        found, _ = read(model, {"tokens": TOKENS, "attention_mask": mask}, layer, pool=pool)
        torch.testing.assert_close(found, torch.stack(expected).detach())


def test_padding_that_is_not_a_number_and_sums_that_overflow_halves_do_no_harm():
    tokens = torch.full((1, 4, 2), 4e4, dtype=torch.float16)
    tokens[0, 3] = torch.nan
    found = pooled(tokens, "mean-token", "x", mask=torch.tensor([[1, 1, 1, 0]]))
    assert found.dtype == torch.float16
    assert found.tolist() == [[4e4, 4e4]]
    assert pooled(tokens[:, :3], "mean-token", "x", mask=torch.zeros(1, 3)).tolist() == [[0.0, 0.0]]


def test_a_mask_of_another_form_is_left_aside():
    tokens = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    for mask in (torch.ones(2, 1, 3, 3), torch.zeros(2, 4), "no mask"):
        assert torch.equal(pooled(tokens, "last-token", "x", mask=mask), tokens[:, -1])


@pytest.mark.parametrize("pool", ["first-token", "last-token", "mean-token"])
def test_padding_is_no_token_in_an_exported_and_in_a_compiled_guard(pool, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(9, (60, 5), generator=generator)
    batch = {"tokens": tokens, "attention_mask": MASK.repeat(20, 1)}
    guarded = OODModel(Masked(), GEM(covariance=0.1), pool=pool).fit([{**batch, "labels": torch.arange(60) % 3}])
    guarded.calibrate([batch])
    expected = guarded(batch).score.detach()
    with guarded:
        torch.testing.assert_close(torch.compile(guarded, backend="eager", fullgraph=True)(**batch).score, expected)
    torch.compiler.reset()
    guarded.export_onnx(
        tmp_path / "guard.onnx", dynamic_shapes={"tokens": {1: "length"}, "attention_mask": {1: "length"}}
    )
    session = onnxruntime.InferenceSession(tmp_path / "guard.onnx")
    for length in (5, 4):
        cut = {name: value[:, :length] for name, value in batch.items()}
        found = session.run(["score"], {name: value.numpy() for name, value in cut.items()})[0]
        np.testing.assert_allclose(found, guarded(cut).score.detach(), rtol=1e-4)


def test_the_last_token_of_a_padded_sentence_is_the_one_that_a_sequence_classifier_reads():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=60, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=1
    )
    model = transformers.GPT2ForSequenceClassification(config).eval()
    lengths = 3 + torch.arange(60) % 7
    mask = (torch.arange(9) < lengths[:, None]).long()
    tokens = torch.randint(2, 60, (60, 9), generator=torch.Generator().manual_seed(1)) * mask
    batch = {"input_ids": tokens, "attention_mask": mask}
    guarded = OODModel(model, GEM(covariance=0.1), pool="last-token")
    guarded.fit([{**batch, "labels": torch.arange(60) % 3}])
    rows = torch.tensor(guarded.features([batch])[0])
    with torch.no_grad():
        torch.testing.assert_close(model.score(rows), model(**batch).logits)
    padded = guarded(**batch).score
    for place in (0, 1, 5):
        alone = {name: value[place : place + 1, : lengths[place]] for name, value in batch.items()}
        torch.testing.assert_close(guarded(**alone).score, padded[place : place + 1], rtol=1e-4, atol=1e-4)


class Recurrent(nn.Module):
    """A layer inside that returns a tuple, and an output that is one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, steps):
        states, last = self.gru(steps)
        return self.head(last[0]), states


def test_a_layer_that_returns_a_tuple_gives_its_first_tensor():
    model, steps = Recurrent(), torch.randn(3, 6, 4)
    torch.testing.assert_close(read(model, steps, "gru", pool="last-token")[0], model.gru(steps)[1][0].detach())
    torch.testing.assert_close(read(model, steps)[0], model.gru(steps)[1][0].detach())


def test_a_function_takes_features_from_the_models_output():
    model, steps = Recurrent(), torch.randn(3, 6, 4)
    found, name = read(model, steps, lambda output: output[1].amax(1))
    assert name is None
    assert torch.equal(found, model(steps)[1].amax(1).detach())


def test_a_layer_may_be_passed_itself(images):
    model = ConvNet()
    assert read(model, images, model.block)[1] == "block"


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(input=torch.relu(self.body(input=inputs)))


def test_a_linear_layer_that_is_called_by_keyword_is_read():
    model, inputs = ByKeyword(), blobs(5)[0]
    assert torch.equal(read(model, inputs)[0], torch.relu(model.body(inputs)).detach())


class Attention(nn.Module):
    """The projection inside attention is a linear layer whose own forward never runs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, steps):
        return self.head(self.attention(steps, steps, steps)[0].mean(1))


def test_the_projection_of_attention_is_not_mistaken_for_the_head():
    model, steps = Attention().eval(), torch.randn(3, 6, 4)
    found, name = read(model, steps)
    assert name == "head"
    torch.testing.assert_close(found, model.attention(steps, steps, steps)[0].mean(1).detach(), rtol=1e-5, atol=1e-6)


def test_an_encoder_that_fuses_its_layers_when_nobody_looks_is_read():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, 3)).eval()
    steps = torch.randn(4, 3, 8)
    found, name = read(model, steps)
    assert name == "2"
    torch.testing.assert_close(found, model[:2](steps).detach(), rtol=1e-5, atol=1e-5)


def test_a_lazy_layer_has_a_width_once_it_has_seen_a_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    found, _ = read(model, torch.randn(5, 2, 2))
    assert found.shape == (5, 4)


def test_a_layer_under_two_names_is_found_by_either():
    model, inputs = Backwards(), blobs(5)[0]
    model.again = model.middle
    assert torch.equal(read(model, inputs, "again")[0], read(model, inputs, "middle")[0])


# Wrapped models


@pytest.fixture
def process_group():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def data_parallel(model):
    return nn.DataParallel(model)


def distributed(model):
    return nn.parallel.DistributedDataParallel(model)


def nested(model):
    return data_parallel(distributed(model))


@pytest.mark.parametrize("wrap", [data_parallel, distributed, nested])
@pytest.mark.usefixtures("process_group")
def test_wrapped_models_are_read_as_the_model_inside(wrap):
    model, inputs = mlp(), blobs(20)[0]
    wrapped = wrap(model)
    assert unwrapped(wrapped) is model
    expected = features_of(model, inputs)
    for layer in ("auto", "5", "module.5"):
        found, name = read(wrapped, inputs, layer)
        assert name == "5"
        assert torch.equal(found, expected)


def test_the_prefix_of_a_wrapper_is_no_part_of_a_bare_models_names():
    with pytest.raises(InputError, match=r"layer is 'module\.5'"):
        OODModel(mlp(), GEM(), "module.5")


def test_a_compiled_model_is_run_uncompiled_and_this_is_said():
    model, inputs = mlp(), blobs(20)[0]
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(UserWarning, match="compile the guarded model instead"):
        guarded = OODModel(compiled, GEM())
    assert guarded.model is model
    assert np.array_equal(guarded.features([inputs])[0], features_of(model, inputs))
    assert without_compilation(model) is model


def test_a_model_compiled_in_place_or_inside_a_wrapper_is_refused_with_the_remedy():
    in_place = mlp()
    in_place.compile(backend="eager")
    inside = nn.DataParallel(torch.compile(mlp(), backend="eager"))
    around = nn.DataParallel(mlp())
    around.compile(backend="eager")
    for model in (in_place, nn.DataParallel(in_place), inside, around):
        with pytest.raises(InputError, match=r"compiled .* compile the guarded model: torch\.compile\(OODModel"):
            OODModel(model, GEM())
        OODModel(model, MSP())(blobs(2)[0])  # a score of logits looks into nothing


def test_a_model_that_is_compiled_after_its_guard_was_made_is_named_as_the_cause():
    model, inputs = mlp(), blobs(20)[0]
    guarded = OODModel(model, GEM(), "5")
    model.eval().compile(backend="eager")
    with torch.inference_mode():
        model(inputs)
    with pytest.raises(InputError, match="compile the guarded model"):
        guarded.features([inputs])


class Placed(torch.Tensor):
    """Rows that say they are on another device."""

    @property
    def device(self):
        return self.place

    def to(self, device):
        assert device == torch.device("cuda", 1)
        return self.as_subclass(torch.Tensor)


def placed(rows, place):
    tensor = torch.tensor(rows).as_subclass(Placed)
    tensor.place = torch.device("cuda", place)
    return tensor


@pytest.mark.parametrize("form", [lambda rows: rows, lambda rows: (rows, None)], ids=["tensor", "tuple"])
def test_rows_of_several_devices_are_joined_in_the_order_of_the_devices(form):
    model = nn.Linear(1, 1)
    reader, capture = FeatureReader(model, "auto", "mean"), _Capture({})
    capture.start(of_all_threads=True)
    for place, rows in ((0, [[3.0], [4.0]]), (2, [[5.0]]), (1, [[1.0], [2.0]])):
        thread = threading.Thread(target=capture.keep, args=("", form(placed(rows, place)), torch.ones(2, 1)))
        thread.start()
        thread.join(20)
    devices = [torch.device("cuda", place) for place in (1, 0, 2)]
    name, features = reader._taken(capture, devices, lambda: torch.ones(5, 1))
    assert (name, features[:, 0].tolist()) == ("", [1.0, 2.0, 3.0, 4.0, 5.0])
    capture.stop()
    assert capture._seen == {}


# Bad input


class Twice(nn.Module):
    """One head for two views of the input."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, inputs):
        return self.head(self.body(inputs)) + self.head(inputs)


class Functional(nn.Module):
    """A head that is no layer, beside layers that never run."""

    def __init__(self):
        super().__init__()
        self.unused, self.more, self.weight = nn.Linear(4, 3), nn.Linear(4, 3), nn.Parameter(torch.ones(3, 4))

    def forward(self, inputs):
        return functional.linear(inputs, self.weight)


class Nothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.strange, self.head = Pairs(), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.strange(inputs)["same"])


class Pairs(nn.Module):
    def forward(self, inputs):
        return {"same": inputs}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read(nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten()), None), "Sequential has no linear layer.* '1'"),
        (lambda: read(mlp(), None, "head"), r"layer is 'head', which is no layer of Sequential; .* such as '5'"),
        (lambda: read(mlp(), None, ""), "layer is '', which is no layer"),
        (lambda: read(mlp(), None, 5), "layer is 5, which is no layer"),
        (lambda: read(Twice(), torch.ones(2, 4)), "layer 'head' ran 2 times in one forward pass"),
        (lambda: read(Twice(), torch.ones(2, 4), "head"), "layer 'head' ran 2 times in one forward pass"),
        (lambda: read(Twice(), torch.ones(2, 4), "spare"), "the forward pass ran layer 'spare' not at all"),
        (lambda: read(Functional(), torch.ones(2, 4)), "the forward pass ran no linear layer; pass layer="),
        (lambda: read(Nothing(), torch.ones(2, 4), "strange"), "layer 'strange' gave a dict; pass a layer that gives"),
        (lambda: read(mlp(), torch.ones(2, 4), lambda output: "x"), "layer returned a str; let it return a tensor"),
        (lambda: read(Tokens(), torch.ones(2, 4, dtype=torch.long)), r"shape \(2, 4, 5\) .* 'first-token'"),
        (lambda: read(mlp(), None, pool="max"), "pool is 'max'; pass 'mean', 'first-token'"),
        (lambda: read(mlp(), torch.ones(2, 4), pool=lambda rows: rows.sum()), r"shape \(\) where one row per input"),
        (lambda: read(mlp(), torch.ones(2, 4), pool=lambda rows: "x"), "shape str where one row per input"),
        (
            lambda: read(Auxiliary(lambda logits: logits.log_softmax(1)), torch.ones(2, 4)),
            r"3 logits .* several have as many outputs \('head', 'auxiliary'\); pass layer= the name",
        ),
        (lambda: read(FunctionalHead(6), torch.ones(2, 4)), r"none has as many outputs \('hidden\.0'\); pass layer="),
        (
            lambda: read(FunctionalHead(6, 5), torch.ones(2, 4)),
            r"none has .* \('hidden\.0', 'hidden\.1'\); pass layer=",
        ),
        (lambda: read(mlp(), None, nn.Linear(6, 3)), "layer is a Linear that is no part of Sequential; .* such as '5'"),
        (
            lambda: read(ByKeyword(), torch.ones(4), "head"),
            r"features of shape \(5,\) .*; add a batch axis: inputs\[None\]",
        ),
    ],
    ids=[
        "no linear layer",
        "unknown name",
        "empty name",
        "a number",
        "fires twice, found",
        "fires twice, named",
        "not at all",
        "a functional head",
        "no tensor",
        "a function without a tensor",
        "a sequence",
        "unknown pool",
        "pool without rows",
        "pool without a tensor",
        "several may give the logits",
        "a functional head over one layer",
        "a functional head over several",
        "a layer of another model",
        "an input without a batch axis",
    ],
)
def test_a_layer_that_cannot_be_read_is_named_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_no_hook_is_left_when_a_layer_cannot_be_read():
    for model, layer in ((Twice(), "auto"), (Twice(), "spare"), (Functional(), "auto"), (Nothing(), "strange")):
        with pytest.raises(InputError):
            OODModel(model, GEM(), layer).features([torch.ones(2, 4)])
        assert hook_counts(model) == 0


def test_a_detector_of_logits_needs_no_layer():
    model = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    assert OODModel(model, MSP()).layer is None


def test_maps_pool_to_the_mean_by_hand():
    maps = torch.arange(24.0).view(1, 2, 3, 4)
    assert pooled(maps, "mean", "x").tolist() == [[5.5, 17.5]]
    assert pooled(maps, "mean", "x", channels_last=True).tolist() == [[10.0, 11.0, 12.0, 13.0]]


# Hooks and modes


def test_hooks_stay_only_while_attached():
    model, inputs = mlp(), blobs(5)[0]
    guarded = OODModel(model, GEM())
    with guarded as same:
        assert same is guarded
        assert hook_counts(model) == 3
        assert np.array_equal(guarded.features([inputs])[0], features_of(model, inputs))
    assert hook_counts(model) == 0
    guarded.attach().attach()
    assert hook_counts(model) == 1  # the layer is known by now
    assert guarded.detach() is model
    assert hook_counts(model) == 0
    guarded.detach()


def test_an_attached_guard_ignores_passes_that_are_not_its_own():
    model, inputs = mlp().eval(), blobs(5)[0]
    with OODModel(model, GEM(), "5") as guarded:
        for _ in range(3):
            model(2.0 * inputs)
        assert np.array_equal(guarded.features([inputs])[0], features_of(model, inputs))


def test_a_hook_that_is_removed_while_its_layer_runs_does_no_harm():
    model, inputs = mlp().eval(), blobs(5)[0]
    guarded = OODModel(model, GEM(), "5")
    handle = model[5].register_forward_pre_hook(lambda module, args: guarded.detach() and None)
    expected = model(inputs)
    guarded.attach()
    assert torch.equal(model(inputs), expected)
    handle.remove()
    assert hook_counts(model) == 0


def test_a_deep_copy_of_an_attached_guard_has_hooks_of_its_own():
    model, inputs = mlp(), blobs(5)[0]
    guarded = OODModel(model, GEM(), "5").attach()
    other = copy.deepcopy(guarded)
    guarded.detach()
    assert (hook_counts(model), hook_counts(other.model)) == (0, 1)
    with torch.no_grad():
        other.model[0].weight.add_(1.0)
    assert np.array_equal(other.features([inputs])[0], features_of(other.model, inputs))
    other.detach()
    assert hook_counts(other.model) == 0


@pytest.mark.parametrize("is_attached", [False, True], ids=["hooks per pass", "attached"])
def test_captured_features_are_not_kept_alive(is_attached):
    model, captured = mlp(), []
    guarded = OODModel(model, GEM(), "5")
    model[5].register_forward_pre_hook(lambda module, args: captured.append(weakref.ref(args[0])))
    if is_attached:
        guarded.attach()
    guarded.features([blobs(5)[0]])
    gc.collect()
    assert [features() for features in captured] == [None]


def test_an_attached_guard_keeps_nothing_of_passes_that_are_not_its_own():
    model, inputs = mlp(), blobs(5)[0]
    with OODModel(model, GEM(), "5") as guarded:
        threads = [threading.Thread(target=model, args=(inputs,)) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join(20)
        model(inputs)
        guarded.features([inputs])
        with pytest.raises(RuntimeError):
            guarded.features([torch.ones(2, 9)])
        assert guarded._reader._attached._seen == {}
        gc.collect()
        alive = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and thing.shape == (5, 6)]
        assert alive == []


def test_evaluation_mode_is_given_back_part_by_part():
    model = mlp().train()
    model[1].eval()
    model[4].eval()
    before = training_flags(model)
    with evaluating(model):
        assert not any(training_flags(model))
        with evaluating(model):
            assert not any(training_flags(model))
        assert not any(training_flags(model))
    assert training_flags(model) == before


@pytest.mark.parametrize(
    "wrap", [lambda model: model, nn.DataParallel, lambda model: nn.ModuleList([model])], ids=range(3)
)
def test_one_thread_does_not_resume_training_under_another(wrap):
    model = mlp().train()
    wrapper = wrap(model)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with evaluating(model):
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(20)
    with evaluating(wrapper):
        pass
    assert not any(training_flags(model))
    with evaluating(wrapper):
        leave.set()
        thread.join(20)
        assert not any(training_flags(model))
    assert all(training_flags(wrapper))

"""Whatever a loader yields and a model returns: the same fit, or one clear line about what is wrong with it."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import Counted, blob_batches, blob_loader, blobs, mlp  # noqa: E402
from numpy.testing import assert_allclose  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from gem_ood import GEM, MSP  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402
from gem_ood.torch.batches import as_batch, first_rows, logits_of, moved, tensors_of  # noqa: E402

BATCHES = blob_batches(120, 40, seed=1)
INPUTS, LABELS = blobs(120, seed=1)


class Encoding(UserDict):
    """A mapping that is no dict, as tokenizers return."""


FORMS = {
    "tuples": tuple,
    "lists": list,
    "tuples with more": lambda pair: (*pair, torch.zeros(40), "x"),
    "mappings": lambda pair: {"input": pair[0], "labels": pair[1]},
    "mappings of one's own": lambda pair: Encoding(input=pair[0], label=pair[1]),
    "mappings under the data set's own names": lambda pair: {"img": pair[0], "target": pair[1]},
    "nested mappings": lambda pair: ({"input": pair[0]}, pair[1]),
    "nested tuples": lambda pair: ((pair[0],), pair[1]),
    "numpy labels": lambda pair: (pair[0], pair[1].numpy()),
    "labels in a list": lambda pair: (pair[0], pair[1].tolist()),
    "small labels": lambda pair: (pair[0], pair[1].to(torch.uint8)),
    "labels as floats": lambda pair: (pair[0], pair[1].float()),
    "labels in a column": lambda pair: (pair[0], pair[1][:, None]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_batch_gives_the_same_fit(form):
    expected = OODModel(mlp(), GEM()).fit(BATCHES).calibrate(BATCHES).detector
    batches = [FORMS[form](pair) for pair in BATCHES]
    guarded = OODModel(mlp(), GEM()).fit(batches).calibrate(batches)
    np.testing.assert_array_equal(guarded.detector.classes_, [0, 1, 2])
    assert_allclose(guarded.detector.gaussians_.class_means, expected.gaussians_.class_means, rtol=1e-12)
    assert guarded.detector.offset_ == expected.offset_


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: [x], lambda x: {"input": x}], ids=range(4))
def test_inputs_alone_calibrate_and_fit_one_class(form):
    bare = [form(inputs) for inputs, _ in BATCHES]
    guarded = OODModel(mlp(), GEM()).fit(bare, one_class=True).calibrate(bare)
    expected = OODModel(mlp(), GEM()).fit(BATCHES, one_class=True).calibrate(BATCHES)
    assert guarded.detector.offset_ == expected.detector.offset_
    assert guarded.features(bare)[1] is None


def test_text_labels_name_the_classes():
    names = np.array(["cat", "dog", "eel"])
    batches = [(inputs, names[labels].tolist()) for inputs, labels in BATCHES]
    np.testing.assert_array_equal(OODModel(mlp(), GEM()).fit(batches).detector.classes_, names)
    np.testing.assert_array_equal(OODModel(mlp(), MSP()).fit(batches, classes=names).detector.classes_, names)


def test_unpack_takes_anything_apart():
    @dataclass
    class Item:
        pixels: torch.Tensor
        kind: torch.Tensor

    batches = [Item(*pair) for pair in BATCHES]
    guarded = OODModel(mlp(), GEM()).fit(batches, unpack=lambda item: (item.pixels, item.kind))
    guarded.calibrate(batches, unpack=lambda item: (item.pixels, None))
    expected = OODModel(mlp(), GEM()).fit(BATCHES).calibrate(BATCHES).detector
    assert guarded.detector.offset_ == expected.offset_
    rows, labels = guarded.features(batches, unpack=lambda item: [item.pixels, item.kind])
    assert (rows.shape, len(labels)) == ((120, 6), 120)
    assert len(guarded.score_samples(batches, unpack=lambda item: (item.pixels, None))) == 120
    assert len(guarded.verdicts(batches, unpack=lambda item: (item.pixels, None)).score) == 120


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_loader_of_pytorch_is_read_with_or_without_workers(n_workers):
    loader = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=50, num_workers=n_workers)
    found = OODModel(mlp(), GEM()).fit(loader).detector
    assert found.statistics_.n_rows == 120


class Stream(IterableDataset):
    """A data set that yields whole batches and says that it does not know how many."""

    def __iter__(self):
        yield from BATCHES

    def __len__(self):
        raise NotImplementedError


def test_a_stream_that_does_not_know_its_length_is_read():
    for loader in (Stream(), DataLoader(Stream(), batch_size=None)):
        assert OODModel(mlp(), GEM()).fit(loader).detector.statistics_.n_rows == 120


def test_a_sampler_may_leave_rows_out():
    data = TensorDataset(INPUTS, LABELS)
    loader = DataLoader(data, batch_size=30, sampler=torch.utils.data.SubsetRandomSampler(range(90)))
    assert OODModel(mlp(), GEM()).fit(loader).detector.statistics_.n_rows == 90


# Models of several inputs, and outputs of several forms


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, left, right, *, scale=None):
        return self.inner(torch.cat([left, right], 1) * (1.0 if scale is None else scale))


def test_a_model_of_several_inputs_takes_them_by_place_or_by_name():
    expected = OODModel(mlp(), GEM()).fit(BATCHES).calibrate(BATCHES)
    by_place = [((inputs[:, :1], inputs[:, 1:]), labels) for inputs, labels in BATCHES]
    by_name = [{"left": inputs[:, :1], "right": inputs[:, 1:], "y": labels} for inputs, labels in BATCHES]
    for batches in (by_place, by_name):
        guarded = OODModel(TwoInputs(), GEM()).fit(batches).calibrate(batches)
        assert guarded.detector.offset_ == pytest.approx(expected.detector.offset_, rel=1e-6)
    first = guarded(INPUTS[:, :1], INPUTS[:, 1:], scale=torch.ones(1)).score
    assert torch.equal(first, guarded(right=INPUTS[:, 1:], left=INPUTS[:, :1]).score)


Named = namedtuple("Named", ["logits", "extra"])


@dataclass
class Output:
    logits: torch.Tensor


class Returns(nn.Module):
    """A classifier whose logits come in another form."""

    def __init__(self, form):
        super().__init__()
        self.inner, self.form = mlp(), form

    def forward(self, inputs):
        return self.form(self.inner(inputs))


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: (logits, "hidden"),
        lambda logits: [logits],
        lambda logits: {"logits": logits, "loss": None},
        lambda logits: Encoding(logits=logits),
        lambda logits: Named(logits, None),
        Output,
    ],
    ids=["tuple", "list", "dict", "mapping", "named tuple", "object"],
)
def test_every_form_of_output_gives_the_same_answer(form):
    expected = OODModel(mlp(), GEM()).fit(BATCHES)(INPUTS)
    out = OODModel(Returns(form), GEM()).fit(BATCHES)(INPUTS)
    assert torch.equal(out.logits, expected.logits)
    assert torch.equal(out.score, expected.score)
    assert torch.equal(OODModel(Returns(form), MSP())(INPUTS).logits, expected.logits)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda logits: {"loss": logits}, "returned dict whose logits are NoneType"),
        (lambda logits: "cat", "returned str whose logits are str"),
        (lambda logits: (), "returned tuple whose logits are tuple"),
        (lambda logits: logits[:, 0], r"returned Tensor whose logits are a tensor of shape \(120,\)"),
        (lambda logits: logits[:, :, None], r"logits are a tensor of shape \(120, 3, 1\)"),
    ],
    ids=["no logits", "text", "nothing", "one dimension", "three dimensions"],
)
def test_an_output_without_a_row_of_logits_per_input_is_refused(form, message):
    with pytest.raises(InputError, match=f"{message}.*; guard a classifier, or wrap it"):
        OODModel(Returns(form), MSP())(INPUTS)


def test_an_output_that_begins_with_a_loss_is_refused():
    with pytest.raises(InputError, match=r"a tuple that begins with a single number, as it does with a loss .* labels"):
        OODModel(Returns(lambda logits: (logits.mean(), logits)), MSP())(INPUTS)


def test_a_text_classifier_of_hugging_face_is_guarded():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config)
    generator = torch.Generator().manual_seed(0)

    def batches(n):
        for _ in range(n):
            tokens = torch.randint(0, 50, (32, 7), generator=generator)
            yield transformers.BatchEncoding(
                {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.arange(32) % 3}
            )

    guarded = OODModel(model, GEM()).fit(batches(6)).calibrate(batches(4))
    assert guarded.layer == "classifier"
    encoded = next(batches(1))
    out = guarded(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"])
    with torch.no_grad():
        model.eval()
        pooled = model.bert(encoded["input_ids"], encoded["attention_mask"]).pooler_output
        expected = model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"])
    torch.testing.assert_close(out.logits, expected.logits)
    assert_allclose(out.score.detach(), guarded.detector.score_samples(pooled.numpy()), rtol=1e-4, atol=1e-4)
    first = OODModel(model, GEM(), lambda output: output.hidden_states[-1], pool="first-token")
    hidden = first.features([{**encoded, "output_hidden_states": True}])[0]
    assert hidden.shape == (32, 8)
    assert_allclose(
        OODModel(model, GEM(), "bert.encoder", pool="first-token").features([encoded])[0], hidden, rtol=1e-5, atol=1e-6
    )


# Bad loaders


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, pixels):
        return self.inner(pixels)


def spoiled(value, batch=2):
    """Return batches of which one has a value that is no number in its row 5."""
    batches = [(inputs.clone(), labels) for inputs, labels in BATCHES]
    batches[batch][0][5, 0] = value
    return batches


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            [inputs for inputs, _ in BATCHES],
            "batch 0 of the loader .* has no labels, but class means need them.*one_cl",
        ),
        ([BATCHES[0], BATCHES[1][:1]], r"batch 1 of the loader \(counted from 0\) has no labels"),
        ([{"pixels": INPUTS, "kind": LABELS}], "mapping holds 'kind', which the forward of Pixels does not take"),
        ([(INPUTS, LABELS[:7])], "batch 0 .* has 7 labels but the model gave 120 rows"),
        ([(INPUTS, 3)], "yielded one label, 3, for a whole batch"),
        ([(INPUTS, torch.eye(3)[LABELS])], r"second has shape \(120, 3\) .* one label per input .* pass unpack="),
        ([(INPUTS, torch.ones(120, 4), LABELS)], r"3 parts .* \(120, 4\) .* unpack= .*batch\[1\]\), batch\[-1\]\)"),
        ([(INPUTS, torch.ones(120, 4).long(), LABELS)], r"3 parts .* second has shape \(120, 4\) and type int64"),
        ([(INPUTS, torch.ones(120, 4).bfloat16())], r"2 parts .* unpack= .* \(\(batch\[0\], batch\[1\]\), None\)"),
        ([(INPUTS, torch.ones(120), LABELS)], r"second has shape \(120,\) and type float32"),
        ([(INPUTS, LABELS + 0.5)], "labels are whole numbers or strings"),
        ([(INPUTS.numpy(), LABELS)], "inputs of type ndarray; let it yield tensors"),
        ([("text", LABELS)], "inputs of type str; let it yield tensors"),
        (spoiled(torch.nan), r"batch 2 of the loader \(counted from 0\): the model's features row 5, column 0 is NaN"),
        (spoiled(torch.inf, 1), r"batch 1 of the loader \(counted from 0\): the model's features row 5, column"),
        ([], "empty; pass at least one batch"),
        (INPUTS, "loader is a Tensor; pass a DataLoader"),
        (INPUTS.numpy(), "loader is a ndarray; pass a DataLoader"),
        ({"pixels": INPUTS}, "loader is a dict; pass a DataLoader"),
        (None, "loader is a NoneType; pass a DataLoader"),
        (TensorDataset(INPUTS, LABELS), r"loader is a TensorDataset, .* pass DataLoader\(dataset, batch_size=256\)"),
    ],
    ids=[
        "no labels",
        "no labels in a later batch",
        "a name that the model lacks",
        "too few labels",
        "one label",
        "one-hot labels",
        "a mask before the labels",
        "a mask of whole numbers before the labels",
        "a mask and no labels",
        "weights before the labels",
        "fractional labels",
        "arrays",
        "text",
        "NaN",
        "infinity",
        "no batch",
        "a tensor",
        "an array",
        "a mapping",
        "nothing",
        "a data set",
    ],
)
def test_a_bad_loader_is_refused_in_one_line(loader, message):
    guarded = OODModel(Pixels(), GEM())
    with pytest.raises(InputError, match=message) as caught:
        guarded.fit(loader)
    assert "\n" not in str(caught.value)
    assert not hasattr(guarded.detector, "n_features_in_")


@pytest.mark.parametrize("unpack", [lambda item: item[0], lambda item: (*item, 1), lambda item: None], ids=range(3))
def test_an_unpack_that_returns_no_pair_is_refused(unpack):
    with pytest.raises(InputError, match=r"unpack returned a \w+; let it return \(inputs, labels\)"):
        OODModel(mlp(), GEM()).fit(BATCHES, unpack=unpack)


def test_no_verb_accepts_an_empty_loader():
    guarded = OODModel(mlp(), GEM()).fit(BATCHES).calibrate(BATCHES)
    offset = guarded.detector.offset_
    for verb in (guarded.calibrate, guarded.score_samples, guarded.verdicts, guarded.features):
        with pytest.raises(InputError, match="the loader yielded no batch; pass one with at least one row"):
            verb([])
    assert guarded.detector.offset_ == offset


def test_the_pass_stops_at_the_first_bad_batch():
    counted = Counted(mlp())
    with pytest.raises(InputError, match="batch 1"):
        OODModel(counted, GEM()).fit(spoiled(torch.nan, 1))
    assert counted.n_calls == 2


@pytest.mark.parametrize("verb", ["calibrate", "score_samples", "verdicts", "features"])
def test_a_mask_is_not_dropped_where_labels_are_not_needed(verb):
    guarded = OODModel(mlp(), GEM()).fit(BATCHES).calibrate(BATCHES)
    with pytest.raises(InputError, match="pass unpack="):
        getattr(guarded, verb)([(INPUTS, torch.ones(120, 4), LABELS)])


# Small pieces


class Watched(torch.Tensor):
    """A tensor that tells how it was moved."""

    def to(self, device, *, non_blocking):
        return torch.device(device).type, non_blocking


def test_a_copy_to_the_processor_is_waited_for():
    tensor = torch.zeros(1).as_subclass(Watched)
    assert moved(tensor, torch.device("cpu")) == ("cpu", False)
    assert moved(tensor, torch.device("cuda")) == ("cuda", True)


def test_tensors_are_found_moved_and_cut_inside_anything():
    Pair = namedtuple("Pair", ["left", "right"])
    value = ({"x": torch.ones(4)}, [torch.zeros(3, 2), "text"], Pair(torch.ones(5), None), torch.tensor(7.0))
    assert [tuple(tensor.shape) for tensor in tensors_of(value)] == [(4,), (3, 2), (5,), ()]
    cut = first_rows(value, 2)
    assert isinstance(cut[2], Pair)
    assert [tuple(tensor.shape) for tensor in tensors_of(cut)] == [(2,), (2, 2), (2,), ()]
    assert all(tensor.device.type == "meta" for tensor in tensors_of(moved(value, torch.device("meta"))))
    assert moved(value, None) is value


def test_a_batch_knows_its_rows():
    batch = as_batch(({"input": INPUTS}, LABELS), mlp())
    assert (batch.args, batch.n_rows) == ((), 120)
    assert as_batch(torch.zeros(3, 4), mlp()).n_rows == 3


def test_logits_are_found_under_their_name_first():
    logits = torch.zeros(2, 3)
    assert logits_of(Named(logits, torch.ones(2, 3))) is logits
    assert logits_of(logits) is logits


def test_the_length_of_a_loader_is_that_of_what_it_reads():
    from gem_ood.torch.streaming import row_count

    data = TensorDataset(INPUTS, LABELS)
    assert row_count(blob_loader(50)) == 50
    assert row_count(DataLoader(data, sampler=torch.utils.data.SubsetRandomSampler(range(90)))) == 90
    assert row_count(DataLoader(Stream(), batch_size=None)) is None
    assert row_count(BATCHES) is None

"""Guards in files and in state_dicts: the same verdicts on a model of one's own, and damage told in one line."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import ConvNet, blob_batches, blobs, mlp  # noqa: E402
from safetensors.numpy import load_file as read_arrays  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from sklearn.base import clone  # noqa: E402
from torch import nn  # noqa: E402

import gem_ood  # noqa: E402
from gem_ood import GEM, MSP, Head, Mahalanobis, storage  # noqa: E402
from gem_ood.detectors import make  # noqa: E402
from gem_ood.errors import FileFormatError, InputError, NotFittedError  # noqa: E402
from gem_ood.torch import ODIN, MCDropout, OODModel  # noqa: E402

TRAIN, HELD_OUT = blob_batches(300, seed=1), blob_batches(200, seed=2)
INPUTS = blobs(30, seed=3)[0]


@pytest.fixture
def guarded():
    return OODModel(mlp(), GEM(priors="empirical")).fit(TRAIN).calibrate(HELD_OUT, tpr=0.9)


def assert_same(found, expected):
    mine, other = found(INPUTS), expected(INPUTS)
    for name in ("logits", "score", "p_value", "is_ood", "nearest_class"):
        assert torch.equal(getattr(mine, name), getattr(other, name)), name


def last_hidden(output):
    return output


# Files


def test_a_saved_guard_gives_the_same_verdicts_on_another_instance_of_the_model(guarded, tmp_path):
    guarded.save(tmp_path / "guard.safetensors")
    loaded = OODModel.load(mlp(), tmp_path / "guard.safetensors")
    assert loaded.layer == "5"
    assert_same(loaded, guarded)
    assert loaded.detector.threshold_ == guarded.detector.threshold_


def test_the_file_holds_the_detector_and_not_the_model(guarded, tmp_path):
    guarded.save(tmp_path / "guard.safetensors")
    names = set(read_arrays(tmp_path / "guard.safetensors"))
    assert not any("model" in name or "weight" in name for name in names)
    assert gem_ood.load(tmp_path / "guard.safetensors").offset_ == guarded.detector.offset_


@pytest.mark.parametrize("name", ["gem", "mahalanobis", "msp", "max-logit", "energy"])
def test_every_detector_of_the_core_is_stored(name, tmp_path):
    guarded = OODModel(mlp(), make(name)).fit(TRAIN).calibrate(HELD_OUT)
    guarded.save(tmp_path / "guard.safetensors")
    assert_same(OODModel.load(mlp(), tmp_path / "guard.safetensors"), guarded)
    other = OODModel(mlp(), make(name))
    other.load_state_dict(guarded.state_dict())
    assert_same(other, guarded)


def test_a_file_of_a_detector_alone_guards_a_model(guarded, tmp_path):
    guarded.detector.save(tmp_path / "detector.safetensors")
    assert_same(OODModel.load(mlp(), tmp_path / "detector.safetensors"), guarded)
    with pytest.raises(InputError, match="8 features in layer '3' but this GEM was fitted to 6"):
        OODModel.load(mlp(), tmp_path / "detector.safetensors", layer="3")


def test_options_are_stored(tmp_path):
    images = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    guarded = OODModel(ConvNet(), Mahalanobis(), "block", input_noise=0.01, channel_std=[0.5])
    guarded.fit([(images, torch.arange(40) % 3)]).calibrate([images])
    guarded.save(tmp_path / "guard.safetensors")
    loaded = OODModel.load(ConvNet(), tmp_path / "guard.safetensors")
    assert (loaded.layer, loaded.input_noise, loaded.channel_std) == ("block", 0.01, (0.5,))
    assert torch.equal(loaded(images).score, guarded(images).score)
    again = {"pool": "mean", "input_noise": 0.01, "channel_std": (0.5,)}
    narrow = OODModel.load(ConvNet(), tmp_path / "guard.safetensors", dtype=torch.float32, **again)
    assert narrow(images).score.dtype == torch.float32
    torch.testing.assert_close(narrow(images).score.double(), guarded(images).score, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("make_guard", "option"),
    [
        (lambda: OODModel(mlp(), MSP()), {"input_noise": 3.0}),
        (lambda: OODModel(mlp(), MSP(), input_noise=0.1), {"input_noise": 0.0}),
        (lambda: OODModel(mlp(), MSP(), input_noise=0.1), {"channel_std": [0.5, 1.0, 1.0, 1.0]}),
        (lambda: OODModel(mlp(), GEM()), {"layer": "2"}),
        (lambda: OODModel(mlp(), GEM()), {"layer": last_hidden}),
        (lambda: OODModel(mlp(), GEM()), {"pool": "first-token"}),
        (lambda: OODModel(mlp(), GEM()), {"detector": GEM()}),
        (lambda: MCDropout(mlp()), {"seed": 5}),
        (lambda: MCDropout(mlp()), {"score": "entropy"}),
        (lambda: ODIN(mlp()), {"noise": 0.1}),
        (lambda: ODIN(mlp()), {"temperature": 1000.0}),
    ],
    ids=[
        "noise",
        "no noise",
        "noise of another size",
        "another layer",
        "a function for a layer",
        "another pool",
        "another detector",
        "another seed",
        "another score",
        "noise of ODIN",
        "temperature of ODIN",
    ],
)
def test_options_that_would_change_scores_are_refused(make_guard, option, tmp_path):
    path = tmp_path / "guard.safetensors"
    guarded = make_guard().fit(TRAIN).calibrate(HELD_OUT)
    guarded.save(path)
    kind, name = type(guarded), next(iter(option))
    with pytest.raises(
        InputError, match=f"{name}=.* would change the scores .*; leave it out, or make a new {kind.__name__}"
    ):
        kind.load(mlp(), path, **option)


@pytest.mark.parametrize("kind", [ODIN, MCDropout])
def test_a_guard_that_makes_its_own_detector_is_not_made_of_a_detector_alone(kind, tmp_path):
    path = tmp_path / "detector.safetensors"
    OODModel(mlp(), MSP()).calibrate(HELD_OUT).detector.save(path)
    with pytest.raises(FileFormatError, match=f"holds a detector alone, and a {kind.__name__} scores otherwise"):
        kind.load(mlp(), path)


def test_a_file_of_a_detector_alone_takes_layer_and_pool_but_no_noise(tmp_path):
    path = tmp_path / "detector.safetensors"
    options = {"layer": "2", "pool": lambda rows: rows[:, :3]}
    guarded = OODModel(mlp(), GEM(), **options).fit(TRAIN).calibrate(HELD_OUT)
    guarded.detector.save(path)
    assert_same(OODModel.load(mlp(), path, **options, input_noise=0.0), guarded)
    with pytest.raises(InputError, match=r"input_noise=0\.1 would change the scores"):
        OODModel.load(mlp(), path, **options, input_noise=0.1)


def test_an_uncalibrated_guard_is_stored_too(tmp_path):
    OODModel(mlp(), GEM()).fit(TRAIN).save(tmp_path / "guard.safetensors")
    assert OODModel.load(mlp(), tmp_path / "guard.safetensors")(INPUTS).is_ood is None


def test_an_unfitted_guard_cannot_be_stored(tmp_path):
    with pytest.raises(NotFittedError, match="before save"):
        OODModel(mlp(), GEM()).save(tmp_path / "guard.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "value"), [("layer", last_hidden), ("pool", lambda rows: rows[:, :3])])
def test_a_function_is_asked_for_again(option, value, tmp_path):
    path = tmp_path / "guard.safetensors"
    guarded = OODModel(mlp(), GEM(), **{option: value}).fit(TRAIN).calibrate(HELD_OUT)
    guarded.save(path)
    with pytest.raises(InputError, match=f"the {option} of the guard in .* was a function.*; pass {option}= it"):
        OODModel.load(mlp(), path)
    assert_same(OODModel.load(mlp(), path, **{option: value}), guarded)


def test_the_device_of_the_fit_is_not_that_of_the_file(guarded, tmp_path):
    """There is no other device here; the file has none either: arrays of plain float64."""
    guarded.save(tmp_path / "guard.safetensors")
    arrays = read_arrays(tmp_path / "guard.safetensors")
    assert {array.dtype.kind for array in arrays.values()} <= {"f", "i"}
    loaded = OODModel.load(mlp().to("meta"), tmp_path / "guard.safetensors")
    assert {buffer.device.type for buffer in loaded._judge.buffers()} == {"meta"}


# Damage


def rewritten(path, **changes):
    """Write the file again with parts of its header replaced, and its checksum right."""
    tensors, header = storage.read(path)
    storage.write(path, tensors=tensors, header={**header, **changes})


@pytest.mark.parametrize(
    ("guard", "error", "message"),
    [
        ("OODModel", FileFormatError, "has a damaged header .*; save the guard again"),
        ({}, FileFormatError, "has a damaged header .*; save the guard again"),
        ({"kind": "OODModel", "settings": 5}, FileFormatError, "has a damaged header"),
        ({"kind": "Oracle", "settings": {}}, FileFormatError, "holds a guard of kind 'Oracle', not OODModel"),
        (
            {"kind": "OODModel", "settings": {"colour": 1}},
            FileFormatError,
            "does not hold the settings of a whole OODM",
        ),
        ({"kind": "OODModel", "settings": {"layer": "lost"}}, InputError, "layer is 'lost', which is no layer"),
        ({"kind": "OODModel", "settings": {"layer": 7}}, InputError, "layer is 7, which is no layer"),
        ({"kind": "OODModel", "settings": {"pool": 7}}, InputError, "pool is 7; pass 'mean'"),
        ({"kind": "OODModel", "settings": {"dtype": "hub"}}, FileFormatError, "has the unknown dtype 'hub' in its hea"),
        ({"kind": "OODModel", "settings": {"dtype": [1]}}, FileFormatError, r"has the unknown dtype \[1\] in its head"),
    ],
    ids=[
        "text",
        "empty",
        "no settings",
        "foreign kind",
        "unknown option",
        "lost layer",
        "odd layer",
        "odd pool",
        "no dtype",
        "odd dtype",
    ],
)
def test_a_damaged_header_is_told_in_one_line(guarded, tmp_path, guard, error, message):
    path = tmp_path / "guard.safetensors"
    guarded.save(path)
    rewritten(path, guard=guard)
    with pytest.raises(error, match=message) as caught:
        OODModel.load(mlp(), path)
    assert "\n" not in str(caught.value)


def test_truncated_foreign_and_absent_files_are_refused(guarded, tmp_path):
    path = tmp_path / "guard.safetensors"
    guarded.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError):
        OODModel.load(mlp(), path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(FileFormatError):
        OODModel.load(mlp(), path)
    with pytest.raises(FileNotFoundError):
        OODModel.load(mlp(), tmp_path / "absent.safetensors")


def test_a_model_of_other_features_is_refused_at_load(guarded, tmp_path):
    guarded.save(tmp_path / "guard.safetensors")
    with pytest.raises(InputError, match="the model has 7 features in layer '5' but this GEM was fitted to 6"):
        OODModel.load(mlp(width=7), tmp_path / "guard.safetensors")


def test_an_option_that_no_guard_has_is_the_callers_own_mistake(guarded, tmp_path):
    guarded.save(tmp_path / "guard.safetensors")
    with pytest.raises(TypeError, match="colour"):
        OODModel.load(mlp(), tmp_path / "guard.safetensors", colour=1)


# State dicts


def test_a_state_dict_carries_weights_and_guard(guarded, tmp_path):
    torch.save(guarded.state_dict(), tmp_path / "state.pt")
    other = OODModel(mlp(seed=9), GEM())
    assert not torch.equal(other.model.eval()(INPUTS), guarded.model.eval()(INPUTS))
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_same(other, guarded)
    assert other.detector.get_params()["priors"] == "empirical"


def test_a_state_dict_goes_through_safetensors(guarded, tmp_path):
    for name, source in (("fitted", guarded), ("unfitted", OODModel(mlp(), GEM()))):
        save_file(source.state_dict(), tmp_path / name)
        other = OODModel(mlp(seed=9), GEM())
        other.load_state_dict(load_file(tmp_path / name))
        assert torch.equal(other.model.eval()(INPUTS), source.model.eval()(INPUTS))
    other.load_state_dict(load_file(tmp_path / "fitted"))
    assert_same(other, guarded)


def test_the_models_own_entries_keep_their_names(guarded):
    state = guarded.state_dict()
    own = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    assert own.keys() == mlp().state_dict().keys()
    assert set(state) - {f"model.{name}" for name in own} == {"_extra_state"}
    mlp().load_state_dict(own)


def test_a_state_that_does_not_fit_leaves_the_guard_as_it_was(guarded):
    offset = guarded.detector.offset_
    cases = [
        (
            OODModel(mlp(width=7), GEM()).fit(TRAIN),
            "the model has 6 features in layer '5' but this GEM was fitted to 7",
        ),
        (OODModel(mlp(), GEM(), "3").fit(TRAIN), "was made with layer='3' and this one with layer='5'"),
        (OODModel(mlp(), GEM(), input_noise=0.1).fit(TRAIN), "was made with input_noise=0.1 and this one with"),
        (OODModel(mlp(), MSP()).fit(TRAIN), "a MSP of logits cannot replace one of features"),
    ]
    for other, message in cases:
        with pytest.raises(InputError, match=message):
            guarded.set_extra_state(other.get_extra_state())
        assert guarded.detector.offset_ == offset
    with pytest.raises(InputError, match="a GEM of features cannot replace one of logits"):
        OODModel(mlp(), MSP()).set_extra_state(guarded.get_extra_state())


@pytest.mark.parametrize("detector", [GEM(priors="empirical"), MSP()], ids=str)
def test_the_state_of_an_unfitted_guard_makes_a_fitted_one_unfitted(detector):
    guarded = OODModel(mlp(), detector).fit(TRAIN).calibrate(HELD_OUT)
    options = detector.get_params()
    unfitted = OODModel(mlp(seed=9), clone(detector))
    guarded.load_state_dict(unfitted.state_dict())
    assert torch.equal(guarded.model.eval()(INPUTS), unfitted.model.eval()(INPUTS))
    assert guarded.get_extra_state().numel() == 0
    assert not guarded.detector.is_calibrated
    assert guarded.detector.get_params() == options
    if isinstance(detector, GEM):
        with pytest.raises(NotFittedError):
            guarded(INPUTS)
    else:
        assert guarded(INPUTS).is_ood is None


def test_a_score_of_logits_that_was_only_calibrated_is_stored(tmp_path):
    guarded = OODModel(mlp(), MSP()).calibrate(HELD_OUT)
    other = OODModel(mlp(seed=9), MSP())
    other.load_state_dict(guarded.state_dict())
    assert_same(other, guarded)
    guarded.save(tmp_path / "guard.safetensors")
    assert_same(OODModel.load(mlp(), tmp_path / "guard.safetensors"), guarded)


def test_a_threshold_for_an_unknown_number_of_logits_is_not_left_out_in_silence():
    guarded = OODModel(mlp(), MSP())
    guarded.detector.calibrate_scores(np.linspace(0.3, 0.9, 100))
    with pytest.raises(NotFittedError, match="call fit"):
        guarded.state_dict()


def test_a_score_of_features_through_a_head_may_take_the_place_of_another(guarded):
    headed = OODModel(mlp(), MSP(head=Head(np.ones((3, 6))))).fit(TRAIN).calibrate(HELD_OUT)
    guarded.load_state_dict(headed.state_dict())
    assert_same(guarded, headed)


def test_a_state_of_another_kind_of_guard_is_refused(guarded):
    tensors, header = guarded._packed()
    header["guard"]["kind"] = "Oracle"
    state = torch.frombuffer(bytearray(storage.pack(tensors=tensors, header=header)), dtype=torch.uint8)
    with pytest.raises(FileFormatError, match="is a Oracle, not a OODModel; load it into a Oracle"):
        OODModel(mlp(), GEM()).set_extra_state(state)


@pytest.mark.parametrize("change", [lambda state: state[:-9], lambda state: state.flip(0)], ids=["cut", "reversed"])
def test_a_damaged_state_is_refused(guarded, change):
    with pytest.raises(FileFormatError, match="the guard in this state_dict"):
        OODModel(mlp(), GEM()).set_extra_state(change(guarded.get_extra_state()))


def test_nothing_in_a_state_is_run(guarded):
    state = guarded.state_dict()["_extra_state"]
    assert (state.dtype, state.ndim) == (torch.uint8, 1)
    header = bytes(state.numpy().tobytes())
    length = int.from_bytes(header[:8], "little")
    assert "__metadata__" in json.loads(header[8 : 8 + length])


def test_a_guard_inside_a_larger_module_is_stored_with_it(guarded):
    outer = nn.ModuleDict({"guard": guarded})
    other = nn.ModuleDict({"guard": OODModel(mlp(seed=9), GEM())})
    other.load_state_dict(outer.state_dict())
    assert_same(other["guard"], guarded)

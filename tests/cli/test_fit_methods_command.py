"""`gem-ood fit --method`: registered detectors and entries of the catalogue, their options and the names of logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import fail, run, run_json
from gem_ood import Combine, Head, load
from gem_ood.detectors import available, catalogue, make
from gem_ood.errors import InputError
from gem_ood.files.heads import read_head, read_head_classes

NAMES = np.array(["eel", "cat", "dog"])  # in the order of the logits, which is not the sorted one


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    means, labels = 3.0 * rng.normal(size=(3, 6)), np.arange(600) % 3
    weight, bias = means, -0.5 * (means**2).sum(axis=1)
    features = means[labels] + rng.normal(size=(600, 6))
    np.savez(folder / "train.npz", features=features, labels=labels)
    np.savez(folder / "named.npz", features=features, labels=NAMES[labels])
    np.savez(folder / "logits.npz", features=features @ weight.T + bias, labels=NAMES[labels])
    np.savez(folder / "head.npz", weight=weight, bias=bias)
    np.savez(folder / "named_head.npz", weight=weight, bias=bias, classes=NAMES)
    np.savez(folder / "wide_head.npz", weight=np.ones((3, 7)))
    np.save(folder / "groups.npy", np.zeros(3, dtype=int))
    return folder


def rows_and_head(data: Path) -> tuple[Any, Any, Head]:
    with np.load(data / "train.npz") as file:
        return file["features"], file["labels"], read_head(data / "head.npz")


@pytest.mark.parametrize("method", ["recommended", "gem-unit", "ash-b", "odin", "ash", "gem"])
def test_entries_and_registered_names_are_fitted_with_their_own_options(
    method: str, data: Path, tmp_path: Path
) -> None:
    features, labels, head = rows_and_head(data)
    out = tmp_path / "detector.safetensors"
    reads_head = not method.startswith("gem")
    given = ("--head", data / "head.npz") if reads_head else ()
    assert run_json("fit", data / "train.npz", "--out", out, "--method", method, *given)["method"] == method
    expected = make("ash", head=head) if method == "ash" else catalogue(method, head=head)[method]
    scores = expected.fit(features, labels).score_samples(features)
    np.testing.assert_allclose(load(out).score_samples(features), scores, rtol=1e-9)


def test_options_go_on_top_of_those_of_the_entry(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "detector.safetensors"
    fit = ("fit", data / "train.npz", "--out", out, "--method")
    run(*fit, "gem-unit", "--option", "covariance=0.25")
    assert (load(out).normalize, load(out).covariance) == (True, 0.25)
    run(*fit, "gem-unit", "--option", "normalize=no")
    assert load(out).normalize is False
    run(*fit, "recommended", "--head", data / "head.npz", "--option", "method=cauchy", "--option", "class_shapes=false")
    joined = load(out)
    assert isinstance(joined, Combine)
    assert (joined.method, len(joined.detectors_)) == ("cauchy", 3)
    run(*fit, "mos", "--head", data / "head.npz", "--groups", data / "groups.npy")
    np.testing.assert_array_equal(load(out).groups, [0, 0, 0])


@pytest.mark.parametrize(
    ("text", "value"), [("False", False), ("no", False), ("FALSE", False), ("0", False), ("True", True), ("Yes", True)]
)
def test_truths_are_read_in_any_case(text: str, value: bool, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "detector.safetensors"
    run("fit", data / "train.npz", "--out", out, "--option", f"normalize={text}")
    assert load(out).normalize is value


def test_none_and_numbers_are_read_where_an_option_may_be_such(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "detector.safetensors"
    fit = ("fit", data / "train.npz", "--out", out, "--method")
    run(*fit, "knn", "--option", "bank=None", "--option", "k=5", "--option", "random_state=none")
    assert (load(out).bank, load(out).k, load(out).random_state) == (None, 5, None)
    run(*fit, "knn", "--option", "bank=0.5", "--option", "k=5", "--option", "tpr=0.9")
    assert (load(out).bank, load(out).tpr) == (0.5, 0.9)


def test_bad_requests_are_one_line_and_write_nothing(data: Path, tmp_path: Path) -> None:
    head, groups = ("--head", data / "head.npz"), ("--groups", data / "groups.npy")
    cases: dict[tuple[Any, ...], str] = {
        ("--option", "normalize=maybe"): "--option normalize is 'maybe', which normalize cannot be; pass true or false",
        ("--option", "normalize=2"): "pass true or false",
        ("--option", "tpr=high"): "--option tpr is 'high', which tpr cannot be; pass a number",
        ("--option", "tpr=none"): "pass a number",
        ("--option", "tpr=nan"): "pass a number",
        ("--option", "random_state=true"): "pass a whole number or none",
        ("--method", "knn", "--option", "k=5.5"): "--option k is '5.5', which k cannot be; pass a whole number",
        ("--method", "knn", "--option", "bank=half"): "pass a number or none",
        ("--option", "head=head.npz"): "--option names 'head', which is a file; pass it with --head",
        ("--method", "combine"): "there is no detector 'combine'; choose one of gem",
        ("--method", "recommended", "--option", "detectors=gem"): "recommended takes calibration, class_shapes, head",
        ("--method", "recommended", *head, "--option", "method=oops"): "oops",
        ("--method", "gem", *head): "gem has no option --head; leave it out",
        ("--method", "gem", *groups): "gem has no option --groups; leave it out",
        ("--method", "mos", *head): "mos needs --groups; pass the group of each logit",
        ("--method", "vim"): "vim needs --head; pass the classifier's last layer",
        ("--method", "energy", *head, "--classes", "a,b"): "--classes has 2 names but there are 3 logits",
        ("--method", "energy", "--classes", "a,b,c"): "--classes has 3 names but there are 6 logits",
        ("--method", "energy", "--head", data / "wide_head.npz"): (
            f"train.npz has 6 features but {data / 'wide_head.npz'} of --head takes 7; pass the features"
        ),
    }
    for arguments, message in cases.items():
        out = tmp_path / "detector.safetensors"
        assert message in fail("fit", data / "train.npz", "--out", out, *arguments), arguments
    assert "combine," not in fail("fit", data / "train.npz", "--out", out, "--method", "gme")
    assert "combine" in available()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [("--head", "head.npz", "--classes", "eel,cat,dog"), ("--head", "named_head.npz")])
def test_class_names_in_the_order_of_the_logits_say_the_same_as_their_numbers(
    given: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    features, labels, head = rows_and_head(data)
    out = tmp_path / "detector.safetensors"
    options = [data / word if word.endswith(".npz") else word for word in given]
    for method in ("openmax", "she", "recommended"):
        result = run_json("fit", data / "named.npz", "--out", out, "--method", method, *options)
        assert method == "recommended" or result["classes"] == NAMES.tolist()
        expected = catalogue(method, head=head)[method].fit(features, labels)
        np.testing.assert_allclose(load(out).score_samples(features), expected.score_samples(features), rtol=1e-6)


def test_class_names_name_the_columns_of_logits(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "detector.safetensors"
    run("fit", data / "logits.npz", "--out", out, "--method", "msp", "--classes", "eel,cat,dog")
    with np.load(data / "logits.npz") as file:
        np.testing.assert_array_equal(load(out).verdicts(file["features"]).nearest_class, file["labels"])


def test_a_detector_that_cannot_be_written_is_met_before_the_fit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gem_ood import GEM

    monkeypatch.setattr(GEM, "fit_batches", lambda *_, **__: pytest.fail("fitted too early"))
    out = tmp_path / f"{'long' * 60}.safetensors"
    error = fail("fit", data / "train.npz", "--out", out)
    assert error.startswith(f"gem-ood: error: {out} cannot be written (")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_saving_names_the_file_that_was_asked_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    out = tmp_path / "detector.safetensors"
    error = fail("fit", data / "train.npz", "--out", out)
    assert f"{out} cannot be written (No space left on device)" in error


def test_the_class_names_of_a_head_file_are_checked(data: Path, tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_head_classes(data / "named_head.npz"), NAMES)
    assert read_head_classes(data / "head.npz") is None
    for classes, message in {
        ("a", "b"): "has 2 names but 'weight' has 3 rows",
        ("a", "b", "a"): "has a name twice",
    }.items():
        np.savez(tmp_path / "head.npz", weight=np.eye(3), classes=classes)
        with pytest.raises(InputError, match=message):
            read_head_classes(tmp_path / "head.npz")

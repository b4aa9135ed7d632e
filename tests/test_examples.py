"""The example scripts: each runs as its docstring says, and what it prints is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import betabinom

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"

#: A threshold that is right keeps fewer or more than this with a probability of one in a million a side.
CHANCE = 1e-6


def run(name, *arguments, blocked=(), code=0):
    """Return what a script prints in a fresh interpreter where some modules cannot be imported."""
    start = f"import runpy, sys; sys.modules |= dict.fromkeys({list(blocked)!r}); sys.argv = sys.argv[1:]; "
    command = f"{start} runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", command, str(EXAMPLES / name), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def line_of(output, row):
    return next(line for line in output.splitlines() if line.startswith(row))


def shares(output, row):
    """Return the percentages in the line that begins so, as fractions."""
    return [float(number) / 100 for number in re.findall(r"([\d.]+)%", line_of(output, row))]


def aurocs(output, guard):
    """Return a guard's AUROCs: of each set the line gives the share flagged, FPR and AUROC."""
    return [float(cell) for cell in line_of(output, guard).split()[4::3]]


def likely_share(n_calibration, n_new, *, flagged):
    """Return the least and the most of new inputs that may be flagged (or kept) at a conformal TPR of 95 %."""
    order = int(0.05 * (n_calibration + 1))  # the threshold is the calibration score of this place from below
    law = betabinom(n_new, order, n_calibration + 1 - order)
    low, high = law.ppf(CHANCE) / n_new, law.isf(CHANCE) / n_new
    return (low, high) if flagged else (1 - high, 1 - low)


def test_the_mlp_keeps_its_promise_and_flags_what_it_was_never_taught():
    output = run("guard_mlp.py")
    low, high = likely_share(433, 433, flagged=True)
    gem, energy = shares(output, "test digits 0 to 7")
    assert low <= gem <= high
    assert low <= energy <= high
    for row in ("unseen digit 8", "unseen digit 9", "noise"):
        assert min(shares(output, row)) > 0.25
    assert shares(output, "noise")[0] > 0.7
    assert shares(output, "An MLP")[0] > 0.9
    assert "at least 95% of new in-distribution rows are kept" in output


def test_the_text_classifier_flags_sentences_on_a_topic_it_never_saw():
    pytest.importorskip("transformers")
    output = run("guard_text_classifier.py")
    low, high = likely_share(400, 400, flagged=True)
    assert low <= shares(output, "sport, cooking, finance")[0] <= high
    assert shares(output, "astronomy")[0] > 0.6
    assert "layer 'classifier'" in output


def test_the_text_example_says_what_to_install_where_transformers_is_absent():
    message = run("guard_text_classifier.py", blocked=["transformers"], code=2)
    assert message == "this example needs transformers; run: pip install transformers\n"


def test_the_resnet_example_says_where_the_data_should_be(tmp_path):
    message = run("guard_cifar_resnet.py", "--data", tmp_path / "nowhere", code=2)
    assert message.startswith(f"{tmp_path / 'nowhere'}")
    assert "pass --data the folder that holds it, or set GEM_OOD_DATA" in message
    assert message.count("\n") == 1


def test_the_guards_of_the_resnet_keep_their_promise_and_one_is_saved_and_exported(
    resnet56_weights, cifar10_images, tmp_path
):
    runtime = pytest.importorskip("onnxruntime")
    from gem_ood.experiments import CifarResNet, normalize_images
    from gem_ood.torch import OODModel

    graph, data = tmp_path / "guarded.onnx", resnet56_weights.parents[1]
    output = run("guard_cifar_resnet.py", "--data", data, "--images", 240, "--out", tmp_path, "--onnx", graph)
    low, high = likely_share(120, 120, flagged=False)
    for name in ("GEM", "Energy", "ODIN"):
        kept, svhn, textures = shares(output, name)
        assert low <= kept <= high
        assert min(svhn, textures) > 1 - kept
        assert min(aurocs(output, name)) > 65  # on all rows the least of them is ODIN's, above 75
    assert "scores the same" in output
    images = normalize_images(cifar10_images["ood_svhn"]["images"][:7])
    session = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    score, is_ood = session.run(["score", "is_ood"], {"images": images.numpy()})
    expected = OODModel.load(CifarResNet.load(resnet56_weights), tmp_path / "guard.safetensors")(images)
    np.testing.assert_allclose(score, expected.score.detach(), rtol=1e-4)
    np.testing.assert_array_equal(is_ood, expected.is_ood)

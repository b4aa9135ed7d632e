"""Every detector of the catalogue guards a model, and answers as it does on the model's features."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import blob_batches, mlp  # noqa: E402

from gem_ood import MSP, Combine, Energy, Head  # noqa: E402
from gem_ood.detectors import catalogue, entries  # noqa: E402
from gem_ood.errors import RankWarning  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402

GROUPS = [0, 0, 0]


@pytest.fixture(scope="module")
def model():
    """A network that knows its classes."""
    torch.manual_seed(0)
    network = mlp()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(30):
        for inputs, labels in blob_batches():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()
    return network.eval()


def made(name, model):
    last = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)][-1]
    head = Head(last.weight, last.bias)
    detector = catalogue([name], head=head, groups=GROUPS)[name]
    if name == "knn":
        detector.set_params(k=5)
    if name == "class-gaussians":
        detector.set_params(covariance="pooled")
    return detector


@pytest.mark.parametrize("name", entries())
def test_the_guard_answers_as_the_detector_does_on_features(model, name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        guarded = OODModel(model, made(name, model)).fit(blob_batches(), progress=False)
        guarded.calibrate(blob_batches(400, seed=1), tpr=0.9, progress=False)
        features, labels = guarded.features(blob_batches(), progress=False)
        alone = made(name, model).fit(features, labels)
    alone.calibrate(guarded.features(blob_batches(400, seed=1), progress=False)[0], tpr=0.9)
    new, _ = guarded.features(blob_batches(100, seed=2), progress=False)
    verdicts = guarded.verdicts(blob_batches(100, seed=2), progress=False)
    np.testing.assert_allclose(verdicts.score, alone.score_samples(new), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(verdicts.is_ood, alone.is_ood(new))
    assert guarded.detector.threshold_.n_rows == alone.threshold_.n_rows
    guarded.save(tmp_path / "guard.safetensors")
    again = OODModel.load(model, tmp_path / "guard.safetensors").verdicts(blob_batches(100, seed=2), progress=False)
    np.testing.assert_array_equal(again.p_value, verdicts.p_value)
    assert 0.8 < 1.0 - np.mean(guarded.verdicts(blob_batches(400, seed=1), progress=False).is_ood) <= 1.0


def test_a_combination_takes_its_reference_from_the_calibration_loader(model):
    guarded = OODModel(model, made("recommended", model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        guarded.fit(blob_batches(), progress=False)
    before = guarded.detector._references
    guarded.calibrate(blob_batches(400, seed=1), tpr=0.9, progress=False)
    assert isinstance(guarded.detector, Combine)
    assert [len(reference) for reference in guarded.detector._references] == [200] * 4
    assert len(before[0]) == 300


@pytest.mark.parametrize("n_parts", [1, 2])
def test_a_combination_is_calibrated_alike_by_a_process_group(model, n_parts):
    import torch.distributed as dist

    head = made("energy", model).head
    guarded = OODModel(model, Combine([Energy(head=head), MSP(head=head)][:n_parts])).fit(
        blob_batches(), progress=False
    )
    alone = guarded.calibrate(blob_batches(400, seed=1), tpr=0.9, progress=False).detector.offset_
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        guarded.calibrate(blob_batches(400, seed=1), tpr=0.9, progress=False, distributed=True)
    finally:
        dist.destroy_process_group()
    assert guarded.detector.offset_ == alone

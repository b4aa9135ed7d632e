"""What extraction gives beside the rows: the network's last layer, its error, and how far the pass is."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from extracted_by_hand import INPUTS, LABELS, PICTURES, N, Pairs, batches  # noqa: E402
from small_networks import PixelNet  # noqa: E402
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments import Extracted  # noqa: E402
from gem_ood.experiments.extraction import Extractor  # noqa: E402


def test_the_head_is_the_last_layer():
    model = PixelNet()
    extract = Extractor(model)
    rows = extract(PICTURES, "made")
    head = extract.head(rows)
    np.testing.assert_array_equal(head.weight, model.fc.weight.detach().numpy().astype(np.float64))
    np.testing.assert_array_equal(head.bias, model.fc.bias.detach().numpy().astype(np.float64))


class Doubled(PixelNet):
    """Its logits are twice what its last layer gives."""

    def forward(self, pixels):
        return 2.0 * super().forward(pixels)


@pytest.mark.parametrize(("model", "layer"), [(PixelNet(), "norm"), (Doubled(), "auto"), (PixelNet(), lambda out: out)])
def test_there_is_no_head_where_the_logits_are_not_its_output(model, layer):
    extract = Extractor(model, layer=layer)
    assert extract.head(extract(PICTURES, "made")) is None


@pytest.mark.parametrize("row", [1, 13, N - 1])
def test_one_row_whose_logits_are_not_the_heads_is_enough(row):
    extract = Extractor(PixelNet())
    rows = extract(PICTURES, "made")
    assert extract.head(rows) is not None
    other = rows.logits.copy()
    other[row, 0] += 1.0
    assert extract.head(replace(rows, logits=other)) is None


def test_the_error_counts_wrong_classes():
    logits = np.random.default_rng(0).normal(size=(50, 4))
    labels = np.random.default_rng(1).integers(0, 4, size=50)
    n_wrong = sum(
        max(range(4), key=lambda k, row=row: row[k]) != label for row, label in zip(logits, labels, strict=True)
    )
    for given in (labels, labels.astype(np.uint8), labels.astype(float), labels[:, None], labels.tolist()):
        assert Extracted(np.zeros((50, 1)), logits, given).error() == n_wrong / 50


@pytest.mark.parametrize("labels", [None, ["a"] * 3, [0, 1, 2], [-1, 0, 1]])
def test_there_is_no_error_where_labels_do_not_count_the_logits(labels):
    assert Extracted(np.zeros((3, 1)), np.zeros((3, 2)), labels).error() is None


def test_there_is_no_error_without_logits():
    assert Extracted(np.zeros((3, 1)), labels=[0, 1, 2]).error() is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((np.zeros(3),), "features must have two dimensions"),
        ((np.zeros((0, 3)),), "features has n_samples=0 rows"),
        ((np.zeros((3, 2)), np.zeros((2, 2))), "logits has 2 rows but features has 3; pass one per row"),
        ((np.zeros((3, 2)), None, [0, 1]), "labels has 2 rows but features has 3; pass one label per row"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts, message):
    with pytest.raises(InputError, match=message):
        Extracted(*parts)


@pytest.mark.parametrize(
    ("source", "total"),
    [
        (PICTURES, N),
        (TensorDataset(INPUTS, LABELS), N),
        (DataLoader(Pairs(), batch_size=10), N),
        (DataLoader(Pairs(), batch_size=10, sampler=SubsetRandomSampler(range(23))), 23),
        (batches(INPUTS, LABELS), None),
    ],
)
def test_progress_ends_at_the_number_of_rows(source, total):
    told = []
    extract = Extractor(PixelNet(), batch_size=10, on_rows=lambda *news: told.append(news))
    n_rows = len(extract(source, "made"))
    assert [name for name, _, _ in told] == ["made"] * len(told)
    assert [n_done for _, n_done, _ in told] == [*range(10, n_rows, 10), n_rows]
    assert {n_total for _, _, n_total in told} == {total}

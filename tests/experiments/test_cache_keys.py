"""What features are found again by: nothing that changes them is left out of a digest or a key."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_networks import PixelNet, count_passes, picture_set  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood.experiments import FeatureCache  # noqa: E402
from gem_ood.experiments.digests import loader_digest, network_digest  # noqa: E402
from gem_ood.experiments.extraction import PROBED_ROWS, Extractor  # noqa: E402


def test_odins_temperature_is_part_of_the_key(tmp_path, monkeypatch):
    pictures = picture_set(30)

    def scores(temperature):
        monkeypatch.setattr("gem_ood.experiments.extraction.ODIN_TEMPERATURE", temperature)
        passes = count_passes(model := PixelNet())
        found = Extractor(model, cache=FeatureCache(tmp_path)).odin(pictures, "made", noise=0.01)
        return found, max(passes)

    (first, n_first), (other, n_other), (again, n_again) = (scores(degrees) for degrees in (1000.0, 1.0, 1000.0))
    assert (n_first, n_other, n_again) == (30, 30, PROBED_ROWS)
    assert (first == again).all()
    assert not torch.allclose(torch.from_numpy(first), torch.from_numpy(other))
    assert len(list(tmp_path.iterdir())) == 2


class Named(nn.Module):
    """Calls a function of the tensor by its name, with the same instructions whatever the name is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)


def with_forward(forward):
    return type("Net", (Named,), {"forward": forward, "__module__": "user", "__qualname__": "Net"})()


def test_a_forward_that_calls_something_of_another_name_is_another_network():
    first = with_forward(lambda self, x: self.fc(x).tanh())
    other = with_forward(lambda self, x: self.fc(x).sigmoid())
    assert type(first).forward.__code__.co_code == type(other).forward.__code__.co_code
    assert network_digest(first) == network_digest(with_forward(lambda self, x: self.fc(x).tanh()))
    assert network_digest(first) != network_digest(other)


class Scale(nn.Module):
    """A part whose setting its repr does not show."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_a_part_that_is_used_twice_counts_at_each_of_its_places():
    def network(third):
        double, triple = Scale(2.0), Scale(3.0)
        return nn.Sequential(double, triple, {"double": double, "triple": triple}[third])

    one = torch.ones(1)
    assert [float(network(third)(one)) for third in ("double", "triple")] == [12.0, 18.0]
    assert network_digest(network("double")) == network_digest(network("double")) != network_digest(network("triple"))


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 6),
        torch.zeros(3, 8),
        torch.zeros(6, 4, dtype=torch.int32),
        torch.zeros(6, 2, dtype=torch.float64),
        torch.zeros(6, 8, dtype=torch.float16),
    ],
)
def test_the_same_bytes_of_another_shape_or_type_are_other_inputs(other):
    usual = torch.zeros(6, 4)
    assert usual.numpy().tobytes() == other.numpy().tobytes()
    first, again, changed = (loader_digest([rows], PixelNet(), None) for rows in (usual, torch.zeros(6, 4), other))
    assert first == again != changed


def test_which_layers_share_a_tensor_matters():
    def network(third):
        torch.manual_seed(0)
        parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
        return nn.Sequential(*parts, parts[third])

    assert network_digest(network(0)) == network_digest(network(0)) != network_digest(network(1))


def test_kept_scores_of_the_step_are_renewed_with_code_that_no_digest_sees(tmp_path):
    class Helped(PixelNet):
        factor = 1.0

        def forward(self, x):
            return super().forward(type(self).factor * x)

    first = Extractor(Helped(), cache=FeatureCache(tmp_path)).odin(picture_set(30), "made", noise=0.01)
    Helped.factor = 1.5
    found = Extractor(Helped(), cache=FeatureCache(tmp_path)).odin(picture_set(30), "made", noise=0.01)
    expected = Extractor(Helped()).odin(picture_set(30), "made", noise=0.01)
    assert not np.array_equal(first, found)
    np.testing.assert_array_equal(found, expected)

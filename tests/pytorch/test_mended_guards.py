"""Cases that once gave a wrong answer: a stored layer, a mask by place, mappings, attached hooks, half precision."""

import copy

import pytest

torch = pytest.importorskip("torch")

from networks import blob_batches, blobs, mlp  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood import GEM  # noqa: E402
from gem_ood.torch import GradNorm, OODModel  # noqa: E402

TRAIN, HELD_OUT = blob_batches(300, seed=1), blob_batches(200, seed=2)
INPUTS = blobs(30, seed=3)[0]


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_state_is_read_at_the_layer_that_it_was_made_at(is_attached):
    stored = OODModel(three_layers(), GEM(), layer="2").fit(TRAIN).calibrate(HELD_OUT)
    fresh = OODModel(three_layers(), GEM())
    if is_attached:
        fresh.attach()
    fresh.load_state_dict(stored.state_dict())
    assert fresh.layer == "2"
    assert torch.equal(fresh(INPUTS).score, stored(INPUTS).score)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask=None):
        hidden = self.embed(input_ids)
        return self.head((hidden * attention_mask[..., None]).sum(1))


@pytest.mark.parametrize("pool", ["mean-token", "last-token"])
def test_a_mask_is_seen_by_place_as_by_name(pool):
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (40, 6))
    mask = (torch.arange(6) < torch.randint(2, 7, (40, 1))).long()
    guarded = OODModel(Tokens(), GEM(covariance=0.1), layer="embed", pool=pool)
    by_name = guarded.features([{"input_ids": ids, "attention_mask": mask}])[0]
    by_place = guarded.features([(ids, mask)], unpack=lambda batch: (batch, None))[0]
    assert (by_name == by_place).all()
    assert (by_name != guarded.features([{"input_ids": ids, "attention_mask": torch.ones_like(mask)}])[0]).any()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x, y=None):
        return self.inner(x if y is None else x + y)


def test_a_mapping_means_the_same_whole_and_from_a_loader():
    guarded = OODModel(Two(), GEM()).fit(TRAIN)
    batch = {"x": INPUTS, "y": 0.1 * INPUTS, "labels": torch.zeros(30)}
    assert torch.equal(guarded(batch).score, torch.tensor(guarded.score_samples([batch])))
    plain = OODModel(mlp(), GEM()).fit(TRAIN)
    assert torch.equal(plain({"image": INPUTS, "label": torch.zeros(30)}).score, plain(INPUTS).score)


def test_hooks_in_place_do_not_cost_the_closed_form():
    model = mlp()
    expected = GradNorm(model, method="closed-form")(INPUTS).score
    with GradNorm(model, method="closed-form") as attached:
        assert torch.equal(attached(INPUTS).score, expected)
    with OODModel(model, GEM()):
        assert torch.equal(GradNorm(model, method="closed-form")(INPUTS).score, expected)


def test_norms_of_a_model_in_half_precision_may_move_by_its_own_rounding():
    wide, narrow = mlp(), copy.deepcopy(mlp()).bfloat16()
    held_out = [inputs for inputs, _ in HELD_OUT]
    moves = []
    for model, dtype in ((wide, torch.float32), (narrow, torch.bfloat16)):
        guarded = GradNorm(model)
        scores = torch.tensor(guarded.score_samples([inputs.to(dtype) for inputs in held_out])).sort().values
        guarded.calibrate([inputs.to(dtype) for inputs in held_out])
        lowered = torch.tensor(guarded.detector.calibration_scores_)
        moves.append(float(((scores - lowered) / scores).median()))
    assert moves[0] < 1e-5
    assert 1e-3 < moves[1] < 0.1

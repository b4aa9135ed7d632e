"""The paper's tables from files of stored features: what is read, in which order, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("torch")  # which tiny_paper writes weights with

from tiny_paper import stored

from gem_ood.errors import InputError
from gem_ood.experiments import Protocol
from gem_ood.experiments.stored import read_stored_features, reproduce_features

pytestmark = pytest.mark.filterwarnings("ignore::gem_ood.errors.RankWarning")


def test_stored_features_take_the_place_of_pictures(tmp_path):
    result = reproduce_features("cifar10", stored(tmp_path), protocol=Protocol(n_draws=3))
    assert result.n_ood == {"svhn": 60, "noise": 60}
    assert result.n_drawn("svhn") == 20
    assert result.printed("msp", "auroc", "svhn") == 0.9189
    assert result.id_error is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"with_labels": False}, "has no labels"),
        ({"sets": ()}, "no file ood_NAME"),
        ({"with_head": False}, "has no file head, the classifier's last layer, which msp, odin, energy read"),
        ({"n_classes": 4}, "holds a head of 4 classes but CIFAR-10 has 10"),
        ({"n_classes": 100}, "holds a head of 100 classes but CIFAR-10 has 10"),
    ],
)
def test_what_lacks_among_stored_features_is_told(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        reproduce_features("cifar10", stored(tmp_path, **change))


def test_stored_features_without_a_head_serve_scores_of_features(tmp_path):
    stored(tmp_path, with_head=False)
    assert reproduce_features("cifar10", tmp_path, methods=["mahalanobis", "gem"]).methods == ("mahalanobis", "gem")
    with pytest.raises(InputError, match="holds labels of 10 classes but CIFAR-100 has 100"):
        reproduce_features("cifar100", tmp_path, methods=["gem"])


def test_names_of_the_papers_sets_count_in_any_case(tmp_path):
    result = reproduce_features("cifar10", stored(tmp_path, sets=("SVHN", "Noise")), methods=["gem"])
    assert tuple(result.n_ood) == ("svhn", "Noise")


def test_stored_sets_come_in_the_order_of_the_papers_tables(tmp_path):
    stored(tmp_path, sets=("isun", "svhn", "noise", "textures", "aloe", "lsun-c"))
    result = reproduce_features("cifar10", tmp_path, methods=["gem"])
    assert tuple(result.n_ood) == ("textures", "svhn", "lsun-c", "isun", "aloe", "noise")


def test_stored_runs_say_how_odin_was_taken(tmp_path):
    stored(tmp_path)
    assert "ODIN with temperature 1000 and a step of 0" in str(reproduce_features("cifar10", tmp_path))
    assert "ODIN" not in str(reproduce_features("cifar10", tmp_path, methods=["gem"]))


def test_two_files_of_one_name_are_refused(tmp_path):
    stored(tmp_path)
    np.save(tmp_path / "train.npy", np.zeros((3, 6)))
    with pytest.raises(InputError, match="are both train; leave one of them there"):
        read_stored_features(tmp_path)


def test_a_folder_without_features_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no file train"):
        read_stored_features(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        read_stored_features(tmp_path / "nowhere")


def test_two_files_of_one_set_are_refused(tmp_path):
    stored(tmp_path, sets=("svhn", "SVHN"))
    with pytest.raises(InputError, match="are both svhn; leave one of them out"):
        read_stored_features(tmp_path)

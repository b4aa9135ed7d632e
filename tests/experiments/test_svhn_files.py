"""SVHN is published as MATLAB files only: others of its names are not taken for it."""

import pytest
from data_sets_on_disk import made, svhn_matlab, write_files

from gem_ood.errors import InputError
from gem_ood.experiments.data_sets import find, load


@pytest.mark.parametrize("name", ["test_32x32", "test_32x32.bin"])
def test_files_of_its_names_in_the_forms_of_cifar_are_not_taken(tmp_path, name):
    write_files(tmp_path, {f"svhn/{name}": bytes(3073)})
    assert find("svhn", tmp_path) is None
    with pytest.raises(InputError, match="SVHN was not found"):
        load("svhn", tmp_path)
    digits, labels = made(4, seed=3)
    write_files(tmp_path, {"svhn/test_32x32.mat": svhn_matlab(digits, labels)})
    assert (load("svhn", tmp_path).images == digits).all()

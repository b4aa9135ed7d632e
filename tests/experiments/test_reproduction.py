"""The paper's tables end to end: from files in official formats, through a network, to numbers beside the paper's."""

import hashlib
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

pytest.importorskip("torch")

from data_sets_on_disk import cifar10_files, made, write_files, write_tar
from tiny_paper import N_OOD, N_TEST, N_TRAIN, pictures, write_network, write_paper_sets

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments import PAPER_SETS, Protocol, data_sets, obtaining, reproduction, run, sources
from gem_ood.experiments.networks.loading import load_network
from gem_ood.experiments.obtaining import fetch_missing
from gem_ood.experiments.reproduction import reproduce

pytestmark = pytest.mark.filterwarnings("ignore::gem_ood.errors.RankWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tiny copies of CIFAR-10 and the six other sets, and the weights of a small network."""
    found = write_paper_sets(tmp_path_factory.mktemp("paper"))
    write_network(found / "wrn.pt")
    return found


def test_all_six_sets_stand_beside_the_papers_numbers(folder):
    result = reproduce("cifar10", data=folder, weights=folder / "wrn.pt")
    assert tuple(result.n_ood) == PAPER_SETS
    assert result.methods == ("msp", "odin", "mahalanobis", "energy", "gem")
    assert result.n_id == N_TEST
    assert [result.n_drawn(ood) for ood in PAPER_SETS] == [N_TEST // 5] * 6
    assert result.printed("gem", "fpr") == 0.3721
    assert result.difference("gem", "fpr") == pytest.approx(result.value("gem", "fpr") - 0.3721)
    assert "WideResNet, " in result.to_text()


def test_the_numbers_are_those_of_run_on_the_same_sets(folder):
    found = reproduce("cifar10", data=folder, weights=folder / "wrn.pt", sets=["svhn", "isun"])
    sets = {name: data_sets.load(name, folder) for name in ("svhn", "isun")}
    train, test = (data_sets.load("cifar10", folder, split=split) for split in ("train", "test"))
    expected = run(load_network(folder / "wrn.pt"), train, test, sets, progress=False)
    for method in expected.methods:
        for metric in ("fpr", "auroc", "aupr_in"):
            assert found.value(method, metric) == expected.value(method, metric)
    assert found.id_error == expected.id_error


def test_sets_come_in_the_order_of_the_papers_tables(folder):
    result = reproduce("cifar10", data=folder, weights=folder / "wrn.pt", sets=["isun", "textures"], methods=["gem"])
    assert tuple(result.n_ood) == ("textures", "isun")


def test_sets_from_elsewhere_keep_that_order_and_the_users_own_come_last(folder):
    ood = {"mine": folder / "LSUN.tar.gz", "isun": folder / "iSUN.tar.gz", "textures": folder / "dtd"}
    options = {"data": folder, "weights": folder / "wrn.pt", "methods": ["gem"]}
    result = reproduce("cifar10", sets=["lsun-r", "svhn"], ood=ood, **options)
    assert tuple(result.n_ood) == ("textures", "svhn", "lsun-r", "isun", "mine")


class StoppedError(Exception):
    """Carries what would have gone through the network."""


@pytest.fixture
def without_run(monkeypatch):
    """Stop before the network runs."""

    def stop(_, train, test, outside, **__):
        raise StoppedError(train, test, outside)

    monkeypatch.setattr(reproduction, "run", stop)


@pytest.mark.parametrize(("limit", "n_taken"), [(None, 10_000), (0, 10_003), (10_001, 10_001)])
def test_ten_thousand_pictures_are_taken_unless_told_otherwise(folder, tmp_path, without_run, limit, n_taken):
    pixels = np.zeros((10_003, 32, 32, 3), dtype=np.uint8)
    for name in ("places365", "mine"):
        np.savez(tmp_path / f"{name}.npz", images=pixels)
    ood = {"places365": tmp_path / "places365.npz", "mine": tmp_path / "mine.npz"}
    options = {} if limit is None else {"limit": limit}
    with pytest.raises(StoppedError) as caught:
        reproduce("cifar10", data=folder, weights=folder / "wrn.pt", sets=["svhn"], ood=ood, **options)
    train, test, outside = caught.value.args
    assert {name: len(images) for name, images in outside.items()} == {
        "svhn": N_OOD,
        "places365": n_taken,
        "mine": n_taken,
    }
    assert (len(train), len(test)) == (N_TRAIN, N_TEST)


@pytest.mark.parametrize("there", ["train", "test"])
def test_a_folder_with_one_split_of_cifar_lacks_its_archive(tmp_path, monkeypatch, there):
    asked = []
    monkeypatch.setattr(obtaining, "fetch", lambda archive, *_, **__: asked.append(archive.file_name))
    files = cifar10_files(made(60), made(50, seed=1))
    halves = {
        "test": {name: data for name, data in files.items() if name.startswith("test")},
        "train": {name: data for name, data in files.items() if name.startswith("data")},
    }
    write_files(tmp_path / "cifar-10-batches-bin", halves[there])
    assert data_sets.find("cifar10", tmp_path, split=there) is not None
    obtaining.fetch_missing(["cifar10"], tmp_path)
    assert asked == ["cifar-10-binary.tar.gz"]
    write_files(tmp_path / "cifar-10-batches-bin", files)
    obtaining.fetch_missing(["cifar10"], tmp_path)
    assert asked == ["cifar-10-binary.tar.gz"]


def test_cifar100_is_compared_with_its_own_table(tmp_path):
    write_paper_sets(tmp_path, name="cifar100", n_classes=100)
    weights = write_network(tmp_path / "wrn.pt", n_classes=100)
    result = reproduce("cifar100", data=tmp_path, weights=weights, sets=["svhn"], methods=["energy", "gem"])
    assert result.printed("gem", "fpr", "svhn") == 0.4387
    assert result.paper.id_error == 24.04


def test_any_folder_of_pictures_is_another_set_that_the_mean_leaves_out(folder):
    result = reproduce(
        "cifar10",
        data=folder,
        weights=folder / "wrn.pt",
        sets=["svhn"],
        ood={"mine": folder / "dtd"},
        methods=["gem"],
    )
    assert result.n_ood == {"svhn": N_OOD, "mine": N_OOD}
    assert result.value("gem", "fpr") == result.value("gem", "fpr", "svhn")
    assert result.printed("gem", "fpr", "mine") is None
    assert "does not have: mine" in result.to_text()


def test_a_set_of_the_paper_may_lie_elsewhere(folder, tmp_path):
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    (elsewhere / "test_32x32.mat").write_bytes((folder / "test_32x32.mat").read_bytes())
    options = {"data": folder, "weights": folder / "wrn.pt", "methods": ["gem"]}
    moved = reproduce("cifar10", sets=["isun", "svhn"], ood={"svhn": elsewhere}, **options)
    usual = reproduce("cifar10", sets=["svhn", "isun"], **options)
    assert moved.as_dict()["methods"] == usual.as_dict()["methods"]
    assert moved.sources["svhn"].startswith(str(elsewhere))


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_set_of_the_paper_keeps_its_own_rules_wherever_it_lies(folder, tmp_path, kind):
    files = pictures("crops", 12, seed=6, size=(36, 36))
    path = write_files(tmp_path / "mine", files) if kind == "folder" else write_tar(tmp_path / "x.tar.gz", files)
    options = {"data": folder, "weights": folder / "wrn.pt", "sets": [], "methods": ["gem"]}
    assert data_sets.load("lsun-c", path, is_own=True).images.shape == (12, 36, 36, 3)
    assert reproduce("cifar10", ood={"lsun-c": path}, **options).sources["lsun-c"].startswith(str(tmp_path))


def test_a_file_of_its_own_is_taken_for_a_set_of_the_paper(folder):
    svhn = data_sets.load("svhn", folder / "test_32x32.mat", is_own=True)
    np.testing.assert_array_equal(svhn.images, data_sets.load("svhn", folder).images)


def test_what_cannot_be_a_set_of_the_paper_is_refused(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(InputError, match="does not hold SVHN in any usual layout"):
            reproduce("cifar10", data=folder, weights=folder / "wrn.pt", ood={"svhn": path})


def test_the_seed_draws_pictures_of_whole_sets_too(folder):
    options = {"data": folder, "weights": folder / "wrn.pt", "sets": ["places365"]}
    options["ood"] = {"mine": folder / "LSUN_resize.tar.gz"}
    first, again, other = (
        reproduce("cifar10", **options, limit=9, methods=["msp"], protocol=Protocol.whole(seed=seed))
        for seed in (0, 0, 1)
    )
    assert first.value("msp", "auroc", "mine") == again.value("msp", "auroc", "mine")
    assert first.value("msp", "auroc", "mine") != other.value("msp", "auroc", "mine")


def test_only_other_sets_make_a_table_too(folder):
    result = reproduce(
        "cifar10", data=folder, weights=folder / "wrn.pt", sets=[], ood={"mine": folder / "dtd"}, methods=["gem"]
    )
    assert result.value("gem", "fpr") == result.value("gem", "fpr", "mine")
    assert result.printed("gem", "fpr") is None


def test_a_limit_cuts_places_and_other_sets(folder):
    result = reproduce(
        "cifar10",
        data=folder,
        weights=folder / "wrn.pt",
        sets=["places365", "svhn"],
        ood={"mine": folder / "dtd"},
        methods=["gem"],
        limit=12,
    )
    assert result.n_ood == {"svhn": N_OOD, "places365": 12, "mine": 12}


def test_everything_missing_is_named_in_one_error_before_any_work(folder, tmp_path):
    with pytest.raises(InputError, match=r"does not hold cifar10, textures, svhn.*isun"):
        reproduce("cifar10", data=tmp_path, weights=folder / "wrn.pt")
    write_paper_sets(tmp_path)
    (tmp_path / "iSUN.tar.gz").unlink()
    with pytest.raises(InputError, match=r"iSUN was not found in .*looked for iSUN.tar.gz, .*--download"):
        reproduce("cifar10", data=tmp_path, weights=folder / "wrn.pt")
    (tmp_path / "LSUN.tar.gz").unlink()
    with pytest.raises(InputError, match=r"does not hold lsun-c, isun; .*that are there \(textures, svhn, places365"):
        reproduce("cifar10", data=tmp_path, weights=folder / "wrn.pt")


def test_published_weights_are_found_in_the_folder_or_their_absence_is_told(folder, tmp_path):
    with pytest.raises(InputError, match=r"cifar10_wrn_pretrained_epoch_99.pt.*gem-ood train cifar10"):
        reproduce("cifar10", data=folder)
    write_paper_sets(tmp_path)
    write_network(tmp_path / "cifar10_wrn_pretrained_epoch_99.pt")
    assert reproduce("cifar10", data=tmp_path, sets=["svhn"], methods=["gem"]).n_id == N_TEST


@pytest.mark.parametrize("n_classes", [4, 100])
def test_weights_of_other_classes_are_refused_before_anything_is_read(folder, tmp_path, n_classes):
    weights = write_network(tmp_path / "other.pt", n_classes=n_classes)
    told = []
    with pytest.raises(InputError, match=f"a network of {n_classes} logits but CIFAR-10 has 10 classes"):
        reproduce("cifar10", data=folder, weights=weights, sets=["svhn"], on_rows=lambda *step: told.append(step))
    assert not told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": ["mnist"]}, "no set 'mnist'"),
        ({"sets": ["svhn", "svhn"]}, "'svhn' is named twice"),
        ({"sets": []}, "no out-of-distribution set"),
        ({"ood": {"cifar100": "x"}}, "name of an in-distribution set"),
        ({"ood": {"mean": "x"}}, "named 'mean'"),
        ({"ood": {"mine": "nowhere"}}, "nowhere does not exist; pass a folder or an archive of pictures for 'mine'"),
        ({"device": "tpu9"}, "device is 'tpu9'"),
        ({"data": "nowhere"}, "nowhere does not exist"),
        ({"methods": ["gme"]}, "no method 'gme'"),
        ({"odin_noise": -1.0}, "odin_noise"),
        ({"batch_size": 0}, "batch_size"),
        ({"limit": -1}, "limit"),
        ({"protocol": 5}, "protocol is a int"),
        ({"ood": ["x"]}, "ood is a list"),
        ({"device": "meta"}, "device is 'meta'"),
        ({"cache": __file__}, "cannot keep features"),
    ],
)
def test_bad_options_are_refused_by_name_before_anything_is_read(folder, options, message):
    told = []
    given = {"data": folder, "weights": folder / "wrn.pt", "on_rows": lambda *step: told.append(step)}
    with pytest.raises(InputError, match=message):
        reproduce("cifar10", **given | options)
    assert not told


def test_other_in_distribution_sets_are_refused(folder):
    with pytest.raises(InputError, match="no table for 'svhn'"):
        reproduce("svhn", data=folder)


def test_a_damaged_archive_is_refused_by_name(folder, tmp_path):
    write_paper_sets(tmp_path)
    whole = (tmp_path / "iSUN.tar.gz").read_bytes()
    (tmp_path / "iSUN.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"iSUN.tar.gz"):
        reproduce("cifar10", data=tmp_path, weights=folder / "wrn.pt", sets=["isun"])


def test_a_second_run_reads_kept_features(folder, tmp_path):
    told = []
    options = {"data": folder, "weights": folder / "wrn.pt", "sets": ["svhn"], "cache": tmp_path / "cache"}
    first = reproduce("cifar10", **options, on_rows=lambda *step: told.append(step))
    assert ("svhn", N_OOD, N_OOD) in told
    told.clear()
    second = reproduce("cifar10", **options, on_rows=lambda *step: told.append(step))
    assert not [step for step in told if not step[0].startswith("read ")]
    assert first.to_json() == second.to_json()


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server on loopback with archives of every set and weights, in the place of the public ones."""
    served = write_paper_sets(tmp_path / "served")
    write_tar(
        served / "cifar-10-binary.tar.gz", cifar10_files(made(60), made(50, seed=1)), inside="cifar-10-batches-bin/"
    )
    write_tar(served / "dtd-r1.0.1.tar.gz", pictures("dtd/images/banded", 20, seed=2))
    write_tar(served / "val_256.tar", pictures("val_256", 20, seed=3), mode="w")
    write_network(served / "cifar10_wrn_pretrained_epoch_99.pt")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(QuietHandler, directory=served)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        for archives in (sources.ARCHIVES, sources.WEIGHTS):
            for name, archive in archives.items():
                path = served / archive.file_name
                if path.exists():
                    checksum = f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
                    url = f"http://127.0.0.1:{server.server_port}/{archive.file_name}"
                    here = replace(archive, url=url, checksum=checksum, n_bytes=path.stat().st_size)
                    monkeypatch.setitem(archives, name, here)
        yield server
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_what_is_missing_is_downloaded_once_and_only_if_asked(published, tmp_path):
    folder = tmp_path / "own"
    told = []
    with pytest.raises(InputError, match="does not exist"):
        reproduce("cifar10", data=folder)
    assert not folder.exists()
    first = reproduce("cifar10", data=folder, download=True, on_bytes=lambda *step: told.append(step))
    assert {name for name, *_ in told} == {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 8
    assert first.n_ood["textures"] == first.n_ood["places365"] == 20
    published.shutdown()
    second = reproduce("cifar10", data=folder)
    assert second.as_dict()["methods"] == first.as_dict()["methods"]


def test_a_download_of_other_bytes_is_refused_and_leaves_nothing(published, tmp_path, monkeypatch):
    wrong = replace(sources.ARCHIVES["svhn"], checksum="md5:" + 32 * "0")
    monkeypatch.setitem(sources.ARCHIVES, "svhn", wrong)
    with pytest.raises(FileFormatError, match=r"test_32x32.mat .*0000 was expected"):
        reproduce("cifar10", data=tmp_path / "own", download=True, sets=["svhn"])
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("weights", ["nope.pt", "hundred.pt"])
def test_weights_are_looked_at_before_anything_is_downloaded(published, tmp_path, weights):
    write_network(tmp_path / "hundred.pt", n_classes=100)
    told = []
    with pytest.raises((InputError, FileNotFoundError)):
        reproduce(
            "cifar10",
            data=tmp_path / "own",
            weights=tmp_path / weights,
            download=True,
            on_bytes=lambda *step: told.append(step),
        )
    assert not told


def test_an_incomplete_copy_is_downloaded_again(published, tmp_path):
    folder = tmp_path / "own"
    files = cifar10_files(made(60), made(50, seed=1))
    write_files(folder / "cifar-10-batches-bin", {name: data for name, data in files.items() if "3" not in name})
    fetch_missing(["cifar10"], folder)
    assert (folder / "cifar-10-binary.tar.gz").exists()
    assert len(data_sets.load("cifar10", folder, split="train")) == 60


def test_names_of_the_papers_sets_count_in_any_case_and_once(folder):
    options = {"data": folder, "weights": folder / "wrn.pt", "sets": [], "methods": ["gem"]}
    result = reproduce("cifar10", ood={"SVHN": folder / "test_32x32.mat"}, **options)
    assert result.printed("gem", "fpr", "svhn") == 0.1342
    archive = folder / "LSUN_resize.tar.gz"
    with pytest.raises(InputError, match="are both lsun-r; leave one of them out"):
        reproduce("cifar10", ood={"LSUN-Resize": archive, "lsun-r": archive}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ood": {"mine": __file__}}, "is a file of another kind"),
        ({"ood": {"mine": 3}}, r"ood\['mine'\] is a int; pass a path"),
        ({"data": 3}, "data is a int; pass a path"),
        ({"weights": 3}, "weights is a int; pass a path"),
        ({"methods": None}, "methods is a NoneType"),
    ],
)
def test_what_is_no_path_is_refused_before_anything_is_read(folder, options, message):
    told = []
    given = {"data": folder, "weights": folder / "wrn.pt", "on_rows": lambda *step: told.append(step)}
    with pytest.raises(InputError, match=message):
        reproduce("cifar10", **given | options)
    assert not told

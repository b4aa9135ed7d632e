"""Scores of pytorch-ood and oodeel on features in memory, the sign turned so that higher = more in-distribution.

The peers are imported inside the functions, since only the environment that writes the expected scores has them.
Keys are `library/method`, with options after the method; where an option is not named, the peer's default holds.
"""

import importlib.util
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALPHA", "BENCHMARKS", "CONFIDENCE", "DIMENSIONS", "NEIGHBORS", "TAIL_SIZE", "Rows", "all_scores"]

#: Neighbours of the methods that count them; the peers' default of 50 would be a third of a class here.
NEIGHBORS = 10
#: Logits that OpenMax revises, of five, and distances of each class that it fits.
ALPHA, TAIL_SIZE = 3, 20
#: Dimensions of the principal space of ViM.
DIMENSIONS = 12
#: Factor on the logits of the rows called confident: softmax probabilities then leave the range of float32.
CONFIDENCE = 30.0
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@dataclass(frozen=True)
class Rows:
    """Labelled rows to fit, the last layer, and rows to score; all of them exact in float32."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    queries: NDArray[np.float64]

    def logits(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the last layer makes of these features."""
        return features @ self.weight.T + self.bias


def all_scores(rows: Rows) -> dict[str, NDArray[np.float64]]:
    """Scores of the queries by every method of both peers."""
    torch = _torch()
    scores = {f"pytorch-ood/{name}": values for name, values in _pytorch_ood(torch, rows).items()}
    scores |= {f"oodeel/{name}": values for name, values in _oodeel(torch, rows).items()}
    return {name: -np.asarray(values, dtype=np.float64) for name, values in scores.items()}


def _torch() -> Any:
    """PyTorch, one thread, with the benchmark's stand-ins for what the peers import and never use here."""
    os.environ["OMP_NUM_THREADS"] = "1"
    place = importlib.util.spec_from_file_location("benchmark_peers", BENCHMARKS / "peers" / "with_torch.py")
    module = importlib.util.module_from_spec(place)
    sys.modules[place.name] = module  # dataclasses and annotations look their module up by name
    place.loader.exec_module(module)
    module.STAND_INS["datasets"] = ("load_dataset",)  # the public verbs of oodeel import it too
    return module.load_torch()


def _pytorch_ood(torch: Any, rows: Rows) -> dict[str, NDArray[Any]]:
    """By the verbs that take logits, features or feature maps; a row of features is a map of 1 × 1 pixel."""
    from pytorch_ood import detector as peer

    head = _head(torch, rows)
    z, y, queries = _tensor(torch, rows.features), torch.from_numpy(rows.labels), _tensor(torch, rows.queries)
    weight, bias = head.weight.detach(), head.bias.detach()
    fit_logits, logits = _tensor(torch, rows.logits(rows.features)), _tensor(torch, rows.logits(rows.queries))
    flat_head = torch.nn.Sequential(torch.nn.Flatten(), head)

    def of_features(detector: Any) -> Any:
        return detector.fit_features(z, y).predict_features(queries)

    def of_maps(detector: Any) -> Any:
        if detector.requires_fit:
            detector.fit_feature_maps(z[:, :, None, None], y)
        return detector.predict_feature_maps(queries[:, :, None, None])

    correct = fit_logits.argmax(dim=1) == y
    open_max = peer.OpenMax(None, tailsize=TAIL_SIZE, alpha=ALPHA).fit_logits(fit_logits, y)
    of_correct = peer.OpenMax(None, tailsize=TAIL_SIZE, alpha=ALPHA).fit_logits(fit_logits[correct], y[correct])
    scores = {
        "msp": peer.MaxSoftmax(None).predict_logits(logits),
        "msp, temperature 1000": peer.MaxSoftmax(None, t=1000.0).predict_logits(logits),
        "max-logit": peer.MaxLogit(None).predict_logits(logits),
        "energy": peer.EnergyBased(None).predict_logits(logits),
        "entropy": peer.Entropy(None).predict_logits(logits),
        "entropy, confident": peer.Entropy(None).predict_logits(CONFIDENCE * logits),
        "gen": peer.GEN(None).predict_logits(logits),
        "gen, 3 classes": peer.GEN(None, M=3).predict_logits(logits),
        "gen, confident": peer.GEN(None).predict_logits(CONFIDENCE * logits),
        "kl-matching": peer.KLMatching(None).fit_logits(fit_logits, y).predict_logits(logits),
        "openmax": open_max.predict_logits(logits),
        "openmax, correct rows": of_correct.predict_logits(logits),
        "openmax, correct rows, one at a time": torch.cat([of_correct.predict_logits(row[None]) for row in logits]),
        "react": of_maps(peer.ReAct(None, flat_head)),
        "ash-p": of_maps(peer.ASH(None, flat_head, "ash-p")),
        "ash-b": of_maps(peer.ASH(None, flat_head, "ash-b")),
        "ash-s": of_maps(peer.ASH(None, flat_head, "ash-s")),
        "scale": of_maps(peer.SCALE(None, flat_head)),
        "dice": of_features(peer.DICE(None, weight, bias, p=0.7)),
        "she": of_features(peer.SHE(None, head)),
        "nn-guide": of_features(peer.NNGuide(None, head, k=NEIGHBORS)),
        "fdbd": of_features(peer.fDBD(None, head)),
        "nci": of_features(peer.NCI(None, head)),
        "nci, alpha 0.01": of_features(peer.NCI(None, head, alpha=0.01)),
        "knn": of_features(peer.KNN(None, k=NEIGHBORS)),
        "vim": of_features(peer.ViM(None, DIMENSIONS, weight, bias)),
        "mahalanobis": of_features(peer.Mahalanobis(None)),
        "relative-mahalanobis": of_features(peer.RMD(None)),
        "class-gaussians": of_features(peer.GMM(None)),
        "grad-norm": peer.GradNorm(head).to("cpu").predict(queries),
        "grad-norm, weight only": peer.GradNorm(head, lambda name: name == "weight").to("cpu").predict(queries),
    }
    return {name: values.detach().numpy() for name, values in scores.items()}


def _oodeel(torch: Any, rows: Rows) -> dict[str, NDArray[Any]]:
    """By `fit` and `score` on a model that is the last layer alone; without its input noise, which changes images."""
    import oodeel.methods.dknn as neighbors
    from oodeel import methods as peer

    neighbors.faiss.IndexFlatL2 = _ExactIndex  # faiss is absent; its flat index is this search
    queries = _tensor(torch, rows.queries)
    labelled = torch.utils.data.TensorDataset(_tensor(torch, rows.features), torch.from_numpy(rows.labels))

    def of(detector: Any, factor: float = 1.0, layers: tuple[int, ...] = ()) -> Any:
        model = torch.nn.Sequential(torch.nn.Identity(), _head(torch, rows, factor))
        loader = torch.utils.data.DataLoader(labelled, batch_size=len(labelled))
        detector.fit(model, loader, feature_layers_id=list(layers))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # 0 · log 0 of the entropy
            return detector.score(queries)[0]

    return {
        "msp": of(peer.MLS(output_activation="softmax")),
        "max-logit": of(peer.MLS()),
        "energy": of(peer.Energy()),
        "entropy": of(peer.Entropy()),
        "entropy, confident": of(peer.Entropy(), CONFIDENCE),
        "gen": of(peer.GEN()),
        "gen, 3 classes": of(peer.GEN(k=3)),
        "react": of(peer.Energy(use_react=True)),
        "ash-s": of(peer.Energy(use_ash=True)),
        "scale": of(peer.Energy(use_scale=True)),
        "knn": of(peer.DKNN(nearest=NEIGHBORS), layers=(0,)),
        "mahalanobis": of(peer.Mahalanobis(eps=0), layers=(0,)),
        "relative-mahalanobis": of(peer.RMDS(eps=0), layers=(0,)),
        "she": of(peer.SHE(eps=0), layers=(0,)),
        "vim": of(peer.VIM(princ_dims=DIMENSIONS), layers=(0,)),
        "vim, pseudo origin": of(peer.VIM(princ_dims=DIMENSIONS, pca_origin="pseudo"), layers=(0,)),
        "vim, 90 % of the variance": of(peer.VIM(princ_dims=0.9), layers=(0,)),
    }


class _ExactIndex:
    """What `faiss.IndexFlatL2` documents: squared Euclidean distances to the nearest rows, by exhaustive search."""

    def __init__(self, dimensions: int) -> None:
        self._bank = np.empty((0, dimensions))

    def add(self, rows: NDArray[np.float32]) -> None:
        self._bank = np.concatenate([self._bank, rows])

    def search(self, rows: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        distances = np.square(rows[:, np.newaxis] - self._bank).sum(axis=2)
        nearest = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, nearest, axis=1).astype(np.float32), nearest


def _head(torch: Any, rows: Rows, factor: float = 1.0) -> Any:
    classes, features = rows.weight.shape
    head = torch.nn.Linear(features, classes)
    head.load_state_dict({"weight": _tensor(torch, factor * rows.weight), "bias": _tensor(torch, factor * rows.bias)})
    return head.requires_grad_(True)


def _tensor(torch: Any, values: NDArray[np.float64]) -> Any:
    return torch.from_numpy(values.astype(np.float32))

"""Extracted: what one pass of a network over a set gives, and the folder where it is kept for the next run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood import storage
from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels

__all__ = ["CACHE_FORMAT", "Extracted", "FeatureCache"]

Key = Mapping[str, Any]

#: Part of every key: another number makes all that was kept before as good as none.
CACHE_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Extracted:
    """One row per input: penultimate features, logits, and labels if there are any.

    Attributes:
        features: n × m.
        logits: n × k; None where only features are kept.
        labels: n whole numbers or names, or None.
    """

    features: NDArray[Any]
    logits: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        features = as_features(self.features)
        object.__setattr__(self, "features", features)
        if self.logits is not None:
            logits = as_features(self.logits, name="logits")
            if len(logits) != len(features):
                raise InputError(f"logits has {len(logits)} rows but features has {len(features)}; pass one per row")
            object.__setattr__(self, "logits", logits)
        if self.labels is not None:
            object.__setattr__(self, "labels", as_labels(self.labels, len(features)))

    def __len__(self) -> int:
        return len(self.features)

    def error(self) -> float | None:
        """Return the share of rows whose largest logit is not their label (P53); None where either is not there.

        >>> Extracted(np.zeros((2, 1)), logits=np.array([[0.0, 1.0], [2.0, 1.0]]), labels=np.array([1, 1])).error()
        0.5
        """
        if self.logits is None or self.labels is None or self.labels.dtype.kind != "i":
            return None
        if self.labels.min() < 0 or self.labels.max() >= self.logits.shape[1]:
            return None  # these labels do not count the logits from 0
        return float(np.mean(self.logits.argmax(axis=1) != self.labels))


class FeatureCache:
    """A folder of arrays, each in a file of its own under a name that its key gives: what was computed from what.

    A file that is damaged, or of another key, is as good as none: it is known by a digest of its arrays. Files are
    written all or nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = FeatureCache(folder)
    ...     cache.keep({"network": "a", "data": "b"}, {"features": np.ones((1, 2))})
    ...     cache.find({"network": "a", "data": "b"}), cache.find({"network": "a", "data": "c"})
    ({'features': array([[1., 1.]])}, None)
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.folder):  # rather now than after a long pass
                pass
        except (OSError, ValueError) as error:  # ValueError: no file can be called so
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{folder} cannot keep features ({reason}); name a folder that can be written, or none (--no-cache)"
            ) from error

    def path(self, key: Key) -> Path:
        """Return the file of a key."""
        found = hashlib.sha256(_document(key).encode()).hexdigest()
        return self.folder / f"features-{found[:32]}.safetensors"

    def find(self, key: Key) -> dict[str, NDArray[Any]] | None:
        """Return the arrays that were kept under this key, or None."""
        try:
            tensors, header = storage.read(self.path(key))
        except (FileNotFoundError, InputError):  # none, damaged, or no file at all
            return None
        if header.get("key") != json.loads(_document(key)) or header.get("digest") != storage.digest(tensors):
            return None
        texts = header.get("texts", ())
        return {name: _as_text(array) if name in texts else array for name, array in tensors.items()}

    def keep(self, key: Key, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Keep arrays under this key; raises InputError, and leaves nothing half-written, where that fails."""
        path = self.path(key)
        texts = [name for name, array in tensors.items() if array.dtype.kind in "UT"]
        plain = {name: _as_bytes(array) if name in texts else array for name, array in tensors.items()}
        header = {
            "kind": "features",
            "key": json.loads(_document(key)),
            "texts": texts,
            "digest": storage.digest(plain),
        }
        with storage.naming(path):
            storage.write(path, tensors=plain, header=header)


def _as_bytes(texts: NDArray[Any]) -> NDArray[np.uint8]:
    """Return names as the bytes of a JSON list: the file holds numbers only."""
    return np.frombuffer(json.dumps(texts.tolist()).encode(), dtype=np.uint8)


def _as_text(array: NDArray[Any]) -> NDArray[Any]:
    return np.array(json.loads(array.tobytes()), dtype=str)


def _document(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)

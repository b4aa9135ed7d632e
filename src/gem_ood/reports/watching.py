"""Watching: what a report keeps of the rows as they are scored, so that every file is read once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison.scoring import ScoredBatch
from gem_ood.detectors import Combine, Detector, GaussianDetector
from gem_ood.detectors.sampling import Sample
from gem_ood.errors import InputError
from gem_ood.features import unit_length
from gem_ood.reports.panels.surprises import Extremes, Surprise, surprising_rows
from gem_ood.theory import Diagnosis
from gem_ood.theory.diagnosis import Residuals

__all__ = ["RowWatch", "SampledRows"]


class SampledRows:
    """A random sample of each set, which does not depend on the batches that rows come in."""

    def __init__(self, n_rows: int, n_sets: int, seed: int) -> None:
        # Half for the rows that the classes are made of, half for all other sets: neither hides the other.
        self._n_inside = n_rows if n_sets == 0 else n_rows - n_rows // 2
        self._n_outside = 0 if n_sets == 0 else max(1, n_rows // 2 // n_sets)
        self._seed = seed
        self._samples: dict[str | None, Sample] = {}

    def add(self, batch: ScoredBatch) -> None:
        """Take in a batch of one set."""
        places = np.arange(batch.first_row, batch.first_row + len(batch.features))
        sample = self._samples.get(batch.ood, Sample())
        self._samples[batch.ood] = sample.add(batch.features, places, size=self._size(batch.ood), seed=self._seed)

    def _size(self, ood: str | None) -> int:
        return self._n_inside if ood is None else self._n_outside

    @property
    def rows(self) -> dict[str | None, tuple[NDArray[Any], NDArray[np.intp]]]:
        """Features and places of the rows kept, by set; None names the in-distribution rows."""
        found: dict[str | None, tuple[NDArray[Any], NDArray[np.intp]]] = {}
        for ood, sample in self._samples.items():
            part = sample.settled(self._size(ood)).parts[0]
            assert part.labels is not None  # places were given with all of them
            order = np.argsort(part.labels)
            found[ood] = part.rows[order], part.labels[order].astype(np.intp)
        return found


class RowWatch:
    """Sees every batch once and keeps a sample, the rows that surprise each detector, labels, and distances."""

    def __init__(
        self, detectors: Mapping[str, Detector], *, n_sets: int, n_sampled: int, n_surprises: int, tpr: float, seed: int
    ) -> None:
        self._detectors, self._n_surprises = detectors, n_surprises
        self._has_sample = n_sampled > 0
        self.sampled = SampledRows(n_sampled, n_sets, seed)
        self._inside = {name: Extremes(n_surprises, sign=1.0) for name in detectors}
        self._outside = {name: Extremes(n_surprises, sign=-1.0) for name in detectors}
        self._labels: list[NDArray[Any]] = []
        self._is_labelled = True
        self._residuals: Residuals | None = None
        self._reads_labels = False
        self.diagnosed, self.no_diagnosis = _gaussian_among(detectors), "no detector here has Gaussian classes"
        if self.diagnosed is not None:
            gaussian = self.diagnosed[1]
            statistics = gaussian.statistics_
            self._reads_labels = statistics.is_labelled
            self._residuals = Residuals(
                gaussian.gaussians_,
                counts=statistics.counts[statistics.counts > 0],
                tpr=tpr,
                prepare=unit_length if gaussian.normalize else None,
            )

    def __call__(self, batch: ScoredBatch) -> None:
        """Take in a batch of scored rows."""
        if self._has_sample:
            self.sampled.add(batch)
        extremes = self._inside if batch.ood is None else self._outside
        for name, verdicts in batch.verdicts.items():
            extremes[name].add(
                verdicts.score, batch.features, ood=batch.ood, first_row=batch.first_row, labels=batch.labels
            )
        if batch.ood is None:
            self._take_labels(batch.labels)
            self._measure(batch)

    def _take_labels(self, labels: NDArray[Any] | None) -> None:
        if labels is None:
            self._is_labelled = False
        else:
            self._labels.append(labels)

    def _measure(self, batch: ScoredBatch) -> None:
        if self._residuals is None:
            return
        try:
            self._residuals.add(batch.features, batch.labels if self._reads_labels else None)
        except InputError as error:  # labels that the fit does not know, or rows beyond all powers
            self._residuals, self.no_diagnosis = None, str(error)

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels of the in-distribution rows, if all of them have one."""
        return np.concatenate(self._labels) if self._labels and self._is_labelled else None

    @property
    def has_lost_labels(self) -> bool:
        """Whether only some of the in-distribution rows have labels, which are then left alone."""
        return bool(self._labels) and not self._is_labelled

    @property
    def diagnosis(self) -> Diagnosis | None:
        """How Gaussian the classes are; None where that cannot be told, for the reason in `no_diagnosis`."""
        return None if self._residuals is None else self._residuals.diagnosis()

    def surprises(self, name: str) -> tuple[Surprise, ...]:
        """Return the rows that one detector judges most against what they are."""
        found = surprising_rows(self._detectors[name], self._inside[name], self._outside[name], self._n_surprises)
        return tuple(replace(one, label=None) for one in found) if self.has_lost_labels else found


def _gaussian_among(detectors: Mapping[str, Detector]) -> tuple[str, GaussianDetector] | None:
    """Return the first detector with Gaussian classes, or else the first such part of a combination."""
    for name, detector in detectors.items():
        if isinstance(detector, GaussianDetector):
            return name, detector
    for name, detector in detectors.items():
        if isinstance(detector, Combine):
            for part in detector.detectors_:
                found = _gaussian_among({name: part})
                if found is not None:
                    return found
    return None

"""Rows that are spread over parts, as those of a cluster are: work and merge only ever see copies of each other."""

from functools import partial
from types import FunctionType, MethodType

import cloudpickle
import numpy as np

from gem_ood import Combine
from gem_ood.batches import SpreadBatches

N_ROWS = 150
WORDS = np.array(["zebra", "ant", "möle"])  # in the order of the logits, which is not their own


class SpreadParts(SpreadBatches):
    """Arrays cut into parts; work and merge are pickled for each, and summaries are merged in a random tree.

    Args:
        features: All rows.
        labels: Their labels, if any.
        cuts: Where a part ends and the next begins; parts without rows are left out.
        order: The rows are first brought into this order.
        seed: Of the order that parts are met and merged in.
        rows_per_batch: How many rows of a part come in one batch.
    """

    def __init__(self, features, labels=None, *, cuts=(), order=None, seed=0, rows_per_batch=50):
        rows = np.arange(len(features)) if order is None else np.asarray(order)
        places = [part for part in np.split(rows, sorted(cuts)) if len(part)]
        self.parts = [
            [
                (features[at], None if labels is None else labels[at])
                for at in np.split(part, range(rows_per_batch, len(part), rows_per_batch))
            ]
            for part in places
        ]
        self.seed = seed
        self.n_passes = 0
        self.largest_work = self.largest_summary = 0

    def head(self):
        return [(X[:5], None if y is None else y[:5]) for X, y in self.parts[0][:1]]

    def reduce(self, work, merge):
        self.n_passes += 1
        generator = np.random.default_rng(self.seed + self.n_passes)
        packed_work, packed_merge = cloudpickle.dumps(work), cloudpickle.dumps(merge)
        self.largest_work = max(self.largest_work, len(packed_work))
        waiting = [self._summary(packed_work, self.parts[at]) for at in generator.permutation(len(self.parts))]
        while len(waiting) > 1:
            one, other = (waiting.pop(int(generator.integers(len(waiting)))) for _ in range(2))
            waiting.append(self._merged(packed_merge, one, other))
        assert (cloudpickle.dumps(work), cloudpickle.dumps(merge)) == (packed_work, packed_merge)
        return cloudpickle.loads(waiting[0])

    def _summary(self, packed_work, part):
        work, rows = frozen(cloudpickle.loads(packed_work)), frozen(cloudpickle.loads(cloudpickle.dumps(part)))
        summary = cloudpickle.dumps(work(rows))
        assert cloudpickle.dumps(work(rows)) == summary  # as it is run again where a process dies
        self.largest_summary = max(self.largest_summary, len(summary))
        return summary

    def _merged(self, packed_merge, one, other):
        first, second = (frozen(cloudpickle.loads(summary)) for summary in (one, other))
        merge = frozen(cloudpickle.loads(packed_merge))
        merged = cloudpickle.dumps(merge(first, second))
        assert cloudpickle.dumps(merge(first, second)) == merged
        self.largest_summary = max(self.largest_summary, len(merged))
        return merged


def frozen(value):
    """Make all arrays of a value read-only, as those are that lie in memory shared with other processes."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict):
        frozen(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            frozen(each)
    elif isinstance(value, partial):
        frozen([value.func, value.args, value.keywords])
    elif isinstance(value, MethodType):
        frozen(value.__self__)
    elif not isinstance(value, type | FunctionType) and hasattr(value, "__dict__"):
        frozen(value.__dict__)
    return value


def by_class(labels):
    return np.argsort(labels, kind="stable")


def partitionings(labels):
    """Return ways to part these rows, by name: where they are cut, after they are brought into an order."""
    n_rows = len(labels)
    shuffled = np.random.default_rng(5).permutation(n_rows)
    return {
        "one part": {"cuts": ()},
        "one row each": {"cuts": range(1, n_rows), "order": shuffled},
        "one class each": {"cuts": np.cumsum(np.bincount(labels))[:-1], "order": by_class(labels), "seed": 3},
        "uneven": {"cuts": [1, 2, 40, 41, n_rows - 1], "order": shuffled[::-1], "rows_per_batch": 7, "seed": 9},
    }


def check_equal(found, expected, rows):
    assert found.n_features_in_ == expected.n_features_in_
    np.testing.assert_array_equal(found.classes_, expected.classes_)
    if isinstance(expected, Combine):
        for one, other in zip(found.detectors_, expected.detectors_, strict=True):
            check_equal(one, other, rows)
        return
    scores = expected.score_samples(rows)
    np.testing.assert_allclose(found.score_samples(rows), scores, rtol=1e-9, atol=1e-10 * np.abs(scores).max())
    np.testing.assert_array_equal(found.verdicts(rows).nearest_class, expected.verdicts(rows).nearest_class)

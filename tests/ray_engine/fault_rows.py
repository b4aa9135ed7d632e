"""Rows for the tests of faults, as tables that stand for files, and faults that happen once."""

import os
import signal
import sys

import numpy as np
import pyarrow as pa
import pytest

cloudpickle = pytest.importorskip("ray.cloudpickle", reason="Ray is not installed")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it

N_FILES = 4


def made_rows():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, 2000)
    return generator.normal(size=(2000, 6)) + 4.0 * np.eye(6)[labels], labels


def as_table(features, labels, **columns):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(features)), np.shape(features)[1])
    return pa.table({"features": lists, "label": pa.array(labels), **columns})


def tables(rows):
    """Return the rows as tables that say which file they are from."""
    parts = zip(*(np.array_split(values, N_FILES) for values in rows), strict=True)
    return [
        as_table(features, labels, path=[f"{number}.parquet"] * len(labels))
        for number, (features, labels) in enumerate(parts)
    ]


class Once:
    """Does something the first time that it is called, of all processes."""

    def __init__(self, marker, deed):
        self.marker, self.deed = marker, deed

    def __call__(self):
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        self.deed()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def emptied(dataset):
    return dataset.map_batches(lambda block: block.slice(0, 0), batch_format="pyarrow")

"""Reading a file holds a batch of it, whatever its size."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from gem_ood import GEM
from gem_ood.files import open_features, reading, score_file

N_ROWS, N_FEATURES = 60_000, 64
FILE_BYTES = N_ROWS * N_FEATURES * 8
BATCH_BYTES = 1 << 20


def parquet_of_one_row_group(path: Path, features: Any) -> None:
    columns = {str(place): features[:, place] for place in range(N_FEATURES)}
    pq.write_table(pa.table(columns), path, row_group_size=N_ROWS, use_dictionary=False, data_page_size=1 << 14)


WRITERS = {
    "npy": np.save,
    "npz": lambda path, features: np.savez(path, features=features),
    "safetensors": lambda path, features: save_file({"features": features}, path),
    "parquet": parquet_of_one_row_group,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_reading_and_scoring_hold_a_batch_and_not_the_file(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", BATCH_BYTES)
    features = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES))
    path = tmp_path / f"rows.{suffix}"
    WRITERS[suffix](path, features)
    detector = GEM().fit(features[:1000])
    expected = detector.score_samples(features)
    arrow_before = pa.total_allocated_bytes()
    arrow_peak = 0
    tracemalloc.start()
    scores = []
    for verdicts in score_file(detector, open_features(path)):
        scores.append(verdicts.score)
        arrow_peak = max(arrow_peak, pa.total_allocated_bytes() - arrow_before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(np.concatenate(scores), expected, rtol=1e-12)
    # A few batches or pages in flight and the chunks of the scores themselves; the file is 31 MB.
    assert peak < FILE_BYTES / 2
    assert arrow_peak < FILE_BYTES / 2

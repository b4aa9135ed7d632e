"""Files of rows: features and labels read in bounded batches, columns of results written all or nothing.

A suffix names the format: `.npy .npz .parquet .csv .safetensors` are read, `.csv .parquet .npz .jsonl` written. A
directory or a pattern with `*` stands for the Parquet files in it, which are read as one.
Nothing here unpickles, and nothing holds more of a file than a batch.
"""

from gem_ood.files.describing import ArrayInfo, DetectorInfo, FileInfo, RowsInfo, describe, holds_detector
from gem_ood.files.heads import read_head
from gem_ood.files.reading import Batch, FeatureFile, open_features
from gem_ood.files.row_statistics import RowStatistics
from gem_ood.files.streaming import calibrate_on_file, fitted_names, score_file, score_to_directory
from gem_ood.files.writing import refuse_overwriting, refuse_unwritable, write_columns

__all__ = [
    "ArrayInfo",
    "Batch",
    "DetectorInfo",
    "FeatureFile",
    "FileInfo",
    "RowStatistics",
    "RowsInfo",
    "calibrate_on_file",
    "describe",
    "fitted_names",
    "holds_detector",
    "open_features",
    "read_head",
    "refuse_overwriting",
    "refuse_unwritable",
    "score_file",
    "score_to_directory",
    "write_columns",
]

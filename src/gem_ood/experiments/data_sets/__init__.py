"""Data sets: the eight of the paper, read from the layouts in which they are usually kept, and any other pictures.

Archives are read without being unpacked, nothing is written, and no pickle is executed.
"""

from gem_ood.experiments.data_sets.catalogue import DATA_SETS, DEFAULT_LIMITS, N_CLASSES, TITLES
from gem_ood.experiments.data_sets.finding import find
from gem_ood.experiments.data_sets.loading import load, load_images

__all__ = ["DATA_SETS", "DEFAULT_LIMITS", "N_CLASSES", "TITLES", "find", "load", "load_images"]

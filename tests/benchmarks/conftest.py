"""The benchmark's modules are scripts beside each other: tests find them as the scripts do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

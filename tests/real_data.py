"""Where the real features, images and weights are, if they are anywhere."""

import os
from pathlib import Path

DATA = Path(os.environ.get("GEM_OOD_DATA", Path(__file__).parents[2] / "shared" / "data"))

"""Ray: fit, calibrate and score where embeddings or images outgrow one machine (`pip install "gem-ood[ray]"`).

`fit`, `calibrate` and `score` take any `ray.data.Dataset`. Rows stay where they are: each block is summed up by the
task that reads it, and the sums are merged in a tree. `extract` turns images into features on the way.
"""

import os
from typing import TYPE_CHECKING, Any

from gem_ood.errors import ClusterError
from gem_ood.extras import require_extra

require_extra("ray", "ray", "ray.data", purpose="fits and scores on a cluster")

from gem_ood.ray.calibrating import calibrate  # noqa: E402
from gem_ood.ray.fitting import fit  # noqa: E402
from gem_ood.ray.reducing import RETRIES  # noqa: E402
from gem_ood.ray.scoring import score  # noqa: E402
from gem_ood.ray.writing import write  # noqa: E402

if TYPE_CHECKING:
    from gem_ood.ray.extraction import extract

__all__ = ["ClusterError", "calibrate", "extract", "fit", "score", "write"]

# Ray runs a task that exhausts the memory of its machine again for ever, so that the job would never end. This counts
# for a connection that is made from now on, and only if the user has not set it.
os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))


def __getattr__(name: str) -> Any:
    if name == "extract":  # which needs PyTorch too
        require_extra("torch", "torch", purpose="features of PyTorch models")
        from gem_ood.ray.extraction import extract

        return extract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

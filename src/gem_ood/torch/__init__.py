"""PyTorch: put the guard on a classifier that is already trained, without changing it.

`OODModel` finds the features, fits and calibrates a detector over a loader, and answers with logits, score, p-value
and verdict from one forward pass. `ODIN`, `GradNorm`, `MCDropout` and `Ensemble` are guards whose score needs the
model itself. `scorer` is a fitted detector's arithmetic as a module; `all_reduce` joins the fits of many processes.
"""

from gem_ood.extras import require_extra

require_extra("torch", "torch", purpose="guards of PyTorch models")

from gem_ood.torch.distributed import all_reduce, gather_scores  # noqa: E402
from gem_ood.torch.ensembles import Ensemble, MCDropout  # noqa: E402
from gem_ood.torch.exporting import export_onnx, read_metadata  # noqa: E402
from gem_ood.torch.gradients import ODIN, GradNorm  # noqa: E402
from gem_ood.torch.guarded import OODModel  # noqa: E402
from gem_ood.torch.judging import OODResult  # noqa: E402
from gem_ood.torch.scorers import Scorer, scorer  # noqa: E402

__all__ = [
    "ODIN",
    "Ensemble",
    "GradNorm",
    "MCDropout",
    "OODModel",
    "OODResult",
    "Scorer",
    "all_reduce",
    "export_onnx",
    "gather_scores",
    "read_metadata",
    "scorer",
]

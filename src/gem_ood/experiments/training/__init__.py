"""Training: the paper's recipe for its network, which goes on after a kill as if nothing had happened."""

from gem_ood.extras import require_extra

require_extra("torch", "torch", purpose="networks")

from gem_ood.experiments.training.on_data_sets import train_on  # noqa: E402
from gem_ood.experiments.training.recipe import (  # noqa: E402
    EpochResult,
    Progress,
    TrainingOptions,
    TrainingResult,
    learning_rate,
)
from gem_ood.experiments.training.running import train  # noqa: E402

__all__ = ["EpochResult", "Progress", "TrainingOptions", "TrainingResult", "learning_rate", "train", "train_on"]

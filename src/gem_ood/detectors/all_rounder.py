"""The all-rounder: the combination to begin with, before anything is known of what will come."""

from typing import Any

from gem_ood.detectors.base import Detector
from gem_ood.detectors.class_gaussians import ClassGaussians
from gem_ood.detectors.combining import Combine
from gem_ood.detectors.gaussian import GEM
from gem_ood.detectors.head import Head
from gem_ood.detectors.logits import Energy
from gem_ood.errors import InputError

__all__ = ["recommended"]

#: Class covariances are left out where they would have more numbers than this: 256 MB, and half a millisecond a row.
MOST_CLASS_NUMBERS = 1 << 25


def recommended(*, head: Head | None = None, class_shapes: bool | None = None, **options: Any) -> Combine:
    """Return the all-rounder: four views of what is usual, joined by Fisher's rule and calibrated as one.

    Choosing, fitting and calibrating it needs no out-of-distribution data: each part looks at something that the others
    do not see, and none has an option that would have to be tuned. The fit needs labels of at least two classes. (While
    it was put together it was tried on a CIFAR-10 network, digits and text, so figures on those are no blind test.)

    - `GEM(normalize=True)`: is the direction of the features one that training rows have? (B8)
    - `GEM(relative=True)`: is the row nearer to a class than to the training rows as a whole? (B9)
    - `ClassGaussians(normalize=True, covariance="pooled")`: does it deviate from its class in the way this class does?
    - `Energy(head=head)`: does the classifier find evidence for any class? Left out without a head.

    Args:
        head: The classifier's last layer; X is features with or without it.
        class_shapes: Whether to take `ClassGaussians`, whose size is classes × features²; None takes it unless the
            head shows that it would be over 256 MB. Without a head, say False for many classes of many features.
        options: Of `Combine`, such as `method` or `tpr`.

    >>> recommended(head=Head([[1.0, 0.0], [0.0, 1.0]])).method
    'fisher'
    """
    if not isinstance(head, Head | None):
        raise InputError(f"head is a {type(head).__name__}; pass Head(weight, bias)")
    if class_shapes is None:
        class_shapes = head is None or head.n_classes * head.n_features**2 <= MOST_CLASS_NUMBERS
    parts: list[Detector] = [GEM(normalize=True), GEM(relative=True)]
    if class_shapes:
        parts.append(ClassGaussians(normalize=True, covariance="pooled"))
    if head is not None:
        parts.append(Energy(head=head))
    return Combine(parts, **options)

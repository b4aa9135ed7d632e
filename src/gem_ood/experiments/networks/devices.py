"""Devices: where a network is run."""

import torch

from gem_ood.errors import InputError

__all__ = ["resolved_device"]


def resolved_device(device: str) -> str:
    """Return the device that "auto" stands for, or this one if it can be used here.

    >>> resolved_device("cpu")
    'cpu'
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=torch.device(device)).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device is {device!r}, which cannot be used here ({reason}); pass 'auto' or 'cpu'") from error
    return device

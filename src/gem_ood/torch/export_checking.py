"""Export checking: onnxruntime beside PyTorch on batches of several sizes, near the example and far from it."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gem_ood.errors import InputError
from gem_ood.torch.batches import mapped
from gem_ood.torch.export_inputs import CHECKED_SIZES, OUTPUTS, GraphInputs, can_hold_nan, cause_of, shapes_of
from gem_ood.torch.judging import Judge, OODResult

__all__ = ["check_graph"]

#: How far inputs are moved for the comparison, in standard deviations of the example: not at all, as far as another
#: input of its kind, and far out of the distribution.
CHECKED_MOVES = (0.0, 1.0, 30.0)

HALF_PRECISIONS = (torch.float16, torch.bfloat16)
HALF_PRECISION_REMEDY = (
    "the model is in half precision, which rounds by about 1e-3 of a number's size in float16: pass tolerance=0.01 if "
    "that is near enough, or export it in float32; otherwise "
)

Judged = Callable[[Sequence[Tensor]], OODResult]


def check_graph(document: bytes, judged: Judged, judge: Judge, inputs: GraphInputs, *, tolerance: float) -> None:
    """Raise unless onnxruntime answers as PyTorch does, which `judged` gives for any inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised here, and need not be printed too
    try:
        session = onnxruntime.InferenceSession(document, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for every kind of failure
        raise InputError(
            f"onnxruntime cannot load the graph: {cause_of(error)}; export the model in float32, or pass another opset="
        ) from error
    for tensors, is_example in _batches(inputs):
        try:
            answer = judged(tensors)
        except Exception as error:
            if not is_example:
                continue  # inputs that were made up need not be such as the model takes
            raise InputError(
                f"the model cannot run on inputs of shape {shapes_of(tensors)}: {cause_of(error)}; let its forward "
                f"take batches of any size"
            ) from error
        what: str | None
        try:
            feed = {name: tensor.cpu().numpy() for name, tensor in zip(inputs.names, tensors, strict=True)}
            found = [torch.from_numpy(np.asarray(part)) for part in session.run(list(OUTPUTS), feed)]
        except Exception as error:
            what = f"it cannot run on inputs of shape {shapes_of(tensors)} ({cause_of(error)})"
        else:
            what = next(_differences(mapped(tuple(answer), Tensor.cpu), found, judge, tolerance, is_example), None)
        if what:
            is_half = any(part.dtype in HALF_PRECISIONS for part in (*tensors, answer.logits))
            raise InputError(
                f"the graph does not answer as PyTorch does, and nothing was written: {what}; "
                f"{HALF_PRECISION_REMEDY if is_half else ''}look in the model's forward for what depends on the size "
                f"of the batch, on Python values or on chance, or pass another tolerance="
            )


def _batches(inputs: GraphInputs) -> Iterator[tuple[list[Tensor], bool]]:
    """Yield batches to compare, each with whether it is the example's own rows; both verdicts should occur."""
    generator = torch.Generator().manual_seed(0)
    for n_rows in CHECKED_SIZES:
        for move in CHECKED_MOVES:
            yield [_moved_about(tensor, move, generator) for tensor in inputs.rows(n_rows)], move == 0.0
    n_rows = CHECKED_SIZES[-1]
    longer = inputs.rows(n_rows)
    for place, axis, _ in inputs.axes:
        if axis:  # more of the end: to cut a sequence might leave nothing but its padding
            end = longer[place].narrow(axis, longer[place].shape[axis] - 1, 1)
            longer[place] = torch.cat([longer[place], end], dim=axis)
    yield longer, False
    for place, tensor in enumerate(inputs.rows(n_rows)):
        if can_hold_nan(tensor):
            entries = tensor.reshape(n_rows, -1).clone()
            spots = torch.randint(entries.shape[1], (n_rows - 1,), generator=generator)  # one row stays whole
            entries[torch.arange(n_rows - 1), spots] = torch.nan
            broken = inputs.rows(n_rows)
            broken[place] = entries.view(tensor.shape)
            yield broken, False


def _moved_about(tensor: Tensor, move: float, generator: torch.Generator) -> Tensor:
    """Return rows moved by so many standard deviations; of what is no number on a scale, other rows."""
    if not move or not tensor.ndim:
        return tensor
    if not tensor.is_floating_point():
        return tensor[torch.randint(len(tensor), (len(tensor),), generator=generator).to(tensor.device)]
    finite = tensor[tensor.isfinite()].double()
    spread = float(finite.std()) if len(finite) > 1 else 0.0
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return tensor + move * (spread or 1.0) * noise


def _differences(
    answer: Sequence[Tensor], found: Sequence[Tensor], judge: Judge, tolerance: float, is_example: bool
) -> Iterator[str]:
    """Yield what of the graph's answer is not as PyTorch has it."""
    for name, expected, came in zip(OUTPUTS, answer, found, strict=True):
        if expected.shape != came.shape:
            yield f"{name} has shape {tuple(came.shape)} and not {tuple(expected.shape)}"
    logits, scores, p_values, is_ood, nearest = found
    is_scored = answer[1].isfinite()
    if not torch.equal(scores[~is_scored], answer[1][~is_scored]):
        yield f"inputs that have no score got {scores[~is_scored].tolist()}"
    for name, came, expected in (("logits", logits, answer[0]), ("scores", scores[:, None], answer[1][:, None])):
        gaps = (came - expected)[is_scored].double().abs()
        shares = gaps / expected[is_scored].double().abs().amax(1, keepdim=True).clamp(min=1.0)
        if not bool((shares <= tolerance).all()):
            yield f"{name} differ by {float(shares.max()):.1g} of their size, beyond tolerance={tolerance:g}"
    # Exact, so that p-values and verdicts are PyTorch's unless a score is within the tolerance of a calibration score.
    own, threshold = scores.to(judge.labels.device), judge.threshold
    assert threshold is not None
    gaps = (p_values - judge._p_values(own).cpu()).abs()
    if not bool((gaps < 0.5 / (judge.n_rows + 1)).all()):
        yield f"p-values differ by {float(gaps.max()):.1g} from those of the graph's own scores"
    if not torch.equal(is_ood, (own < threshold).cpu()):
        yield "verdicts are not those of the graph's own scores"
    # Of inputs that were made up, two classes may be equally near but for rounding.
    if is_example and not torch.equal(nearest[is_scored], answer[4][is_scored]):
        yield "nearest classes differ"

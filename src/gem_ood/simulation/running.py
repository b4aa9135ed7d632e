"""Many settings, several runs each, on all cores; the numbers depend on the seed, the setting and the run alone."""

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.gaussians.parallel import available_cores, run_in_parts
from gem_ood.metrics import fpr_at_tpr
from gem_ood.simulation.sampling import Sampler, check_sampler, draw_scores, scorer_of
from gem_ood.simulation.scoring import SCORES
from gem_ood.simulation.settings import Setting, checked_whole_number
from gem_ood.thresholds import as_probability

__all__ = ["Draws", "Progress", "Rates", "for_each", "run_seed", "simulate_settings"]

#: One false positive rate per run, by score.
Rates = dict[str, NDArray[np.float64]]

#: Called with the rows drawn so far and the rows there will be.
Progress = Callable[[int, int], None]

Task = TypeVar("Task")
Result = TypeVar("Result")


def simulate_settings(
    settings: Iterable[Setting],
    *,
    runs: int = 5,
    seed: int = 0,
    sampler: Sampler = "full",
    tpr: float = 0.95,
    progress: Progress | None = None,
) -> list[Rates]:
    """Return the false positive rates of each setting, in order: one per run, by score.

    A run's numbers depend on the seed, the sampler, its setting and its place among the runs, and on nothing else: not
    on the other settings, their order, or the number of threads.

    Args:
        settings: What to simulate.
        runs: How often to draw each setting.
        seed: A whole number of at least 0.
        sampler: "full" draws rows of d numbers, "projected" their exact reduction (B3).
        tpr: The true positive rate at which rates are read.
        progress: Called as the work goes on, from one thread at a time.

    Example:
        >>> settings = [Setting(2, 16, distance, n_in=500, n_out=500) for distance in (2.0, 8.0)]
        >>> near, far = simulate_settings(settings, runs=3)
        >>> near["gem"].shape, bool(near["gem"].min() > far["gem"].max())
        ((3,), True)
    """
    chosen = list(settings) if isinstance(settings, Iterable) else [settings]
    for setting in chosen:
        if not isinstance(setting, Setting):
            raise InputError(f"settings has {setting!r}; pass a list of gem_ood.simulation.Setting")
    rates = Draws.checked(runs=runs, seed=seed, sampler=sampler, tpr=tpr).counting(chosen, progress)
    return for_each(rates, chosen, cost=lambda setting: setting.n_rows * setting.dimension)


@dataclass(frozen=True)
class Draws:
    """How settings are drawn, checked."""

    runs: int
    seed: int
    sampler: Sampler
    tpr: float

    @classmethod
    def checked(cls, *, runs: int, seed: int, sampler: Sampler, tpr: float) -> "Draws":
        """Return these choices, or raise before long work.

        >>> Draws.checked(runs=5, seed=0, sampler="full", tpr=0.95).runs
        5
        """
        check_sampler(sampler)
        return cls(
            checked_whole_number(runs, name="runs"),
            checked_whole_number(seed, name="seed", smallest=0),
            sampler,
            float(as_probability(tpr, name="tpr")),
        )

    def counting(self, settings: Sequence[Setting], progress: Progress | None) -> Callable[[Setting], Rates]:
        """Return what draws one of these settings, from any thread, and tells of the rows that all of them have."""
        counter = _RowCounter(self.runs * sum(setting.n_rows for setting in settings), progress)

        def rates(setting: Setting) -> Rates:
            scorer = scorer_of(setting, self.sampler)
            found = {name: np.empty(self.runs) for name in SCORES}
            for run in range(self.runs):
                state = run_seed(self.seed, setting, run, self.sampler)
                inside, outside = draw_scores(setting, random_state=state, sampler=self.sampler, scorer=scorer)
                for name in SCORES:
                    found[name][run] = fpr_at_tpr(inside[name], outside[name], tpr=self.tpr)
                counter.add(setting.n_rows)
            return found

        return rates


def run_seed(seed: int, setting: Setting, run: int, sampler: Sampler) -> np.random.SeedSequence:
    """Return the seed of one run of one setting.

    Example:
        >>> run_seed(0, Setting(10, 512, 10.0), 1, "full").spawn_key[:4]
        (0, 1, 10, 512)
    """
    sizes = (setting.n_classes, setting.dimension, setting.n_in, setting.n_out)
    # Two words for each real number: its bits, so that no two settings share a key.
    numbers = struct.unpack("<4I", struct.pack("<2d", setting.distance + 0.0, setting.sigma))
    return np.random.SeedSequence(seed, spawn_key=(int(sampler == "projected"), run, *sizes, *numbers))


def for_each(work: Callable[[Task], Result], tasks: Sequence[Task], *, cost: Callable[[Task], float]) -> list[Result]:
    """Return the results of work on each task, in order; every core takes the costliest task that is left.

    Example:
        >>> for_each(abs, [-1, -3, 2], cost=abs)
        [1, 3, 2]
    """
    waiting = deque(sorted(range(len(tasks)), key=lambda place: -cost(tasks[place])))
    results: dict[int, Result] = {}

    def take_turns(_: slice) -> None:
        try:
            while True:
                try:
                    place = waiting.popleft()
                except IndexError:
                    return
                results[place] = work(tasks[place])
        except BaseException:
            waiting.clear()  # an error or Ctrl-C here ends the other threads' work too
            raise

    run_in_parts(take_turns, len(tasks), operations=np.inf, fewest_threads=available_cores())
    return [results[place] for place in range(len(tasks))]


class _RowCounter:
    """Adds up the rows of all threads and tells whoever wants to know."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, n_rows: int) -> None:
        with self._lock:
            self._done += n_rows
            if self._progress is not None:
                self._progress(self._done, self._total)

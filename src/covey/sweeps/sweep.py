"""A sweep: the runs of a grid that are not done yet, then the table, the choice and the figure."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from covey.config import configuration
from covey.config.checking import ConfigurationError
from covey.core import atomic_files
from covey.report.page import write_page
from covey.runs.directory import LOCK, RunDirectory
from covey.sweeps import results, trial, workers
from covey.sweeps.grid import SPLIT, Trial, axis_of, grid_of

TABLE, FIGURE, RUNS = "table.csv", "figure.html", "runs"
_LOCAL = 2  # runs at once on this machine


def sweep(
    study: Path,
    settings: Sequence[str],
    *,
    out: Path,
    seeds: int = 1,
    by: str | None = None,
    processes: int | None = 1,
    address: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> results.Choice:
    """Run a study for every combination of settings and every seed, and choose by validation rows.

    A run that is done is never done again, also after `kill -9`; one that was stopped resumes from
    its last checkpoint.

    Args:
        study: The configuration file. Its `run.seed` is the first seed.
        settings: "table.key=value,value" for each setting that varies.
        out: Folder of the sweep; each run has its directory in `out/runs`.
        seeds: Seeds per combination.
        by: The measure to choose by. Default: nll.
        processes: Runs at once; None: 2, or as many as the cluster has CPUs.
        address: Address of a Ray cluster to run on, "host:port" or "auto", whose nodes all see the
            study and `out`. Default: processes on this machine.
        report: Takes a line on how far the work is.

    Returns:
        The table and the choice, also in `out/table.csv` and `out/figure.html`.

    Raises:
        ValueError: The study or a setting is wrong, there are no validation rows, a run failed, or
            all diverged.
        OSError: No cluster answers, or a run was lost several times.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"--workers must be at least 1, got {processes}")
    if address is not None:
        study, out = study.resolve(), out.resolve()
    axes = [axis_of(given) for given in settings]
    trials = grid_of(study, axes, seeds, out / RUNS)
    _need_validation_rows(trials[0])
    if address is not None:
        _need_one_process(trials)
        from covey.engines import ray  # not needed for a sweep on this machine

        ray.connect(address)
    with RunDirectory(out).held():
        outcomes = {one: found for one in trials if (found := trial.stored(one)) is not None}
        if outcomes:
            report(f"{len(outcomes)} of {len(trials)} runs are done already")
        left = [one for one in trials if one not in outcomes]
        for one, found in _conducted(left, out, processes, address):
            outcomes[one] = found
            report(f"{len(outcomes)} of {len(trials)}: {one}: {_said(found, by)}")
        _need_all(outcomes)
        choice = results.choose(axes, {one: outcomes[one] for one in trials}, by)
        atomic_files.write(out / TABLE, choice.table.to_csv(index=False).encode())
        figure = results.figure_of(axes, outcomes, choice)
        write_page(out / FIGURE, f"Sweep of {study.stem}", [figure])
    return choice


def _conducted(
    trials: list[Trial], out: Path, processes: int | None, address: str | None
) -> Iterator[tuple[Trial, trial.Outcome]]:
    """The runs as they are done, in processes of this machine or of a cluster."""
    if address is None:
        return workers.each(trial.conduct, trials, _LOCAL if processes is None else processes)
    from covey.engines import ray

    return ray.each(trial.conduct, trials, address=address, shared=out / LOCK, at_once=processes)


def _need_one_process(trials: list[Trial]) -> None:
    for one in trials:
        engine = one.configuration().tables.get("run", {}).get("engine")
        if engine == "ray":
            raise ConfigurationError(
                f"{one.study}: a sweep over a cluster gives each run one CPU, and run.engine is "
                "'ray', which needs more; add --set run.engine=simulate, or leave --address out"
            )


def _need_validation_rows(first: Trial) -> None:
    parts = configuration.build(first.configuration())
    if not parts.data.counts(SPLIT).any():
        raise ConfigurationError(
            f"{first.study}: a sweep chooses by {SPLIT} rows and there are none; set "
            f"data.{SPLIT}, e.g. --set data.{SPLIT}=0.2"
        )


def _need_all(outcomes: dict[Trial, trial.Outcome]) -> None:
    failed = [f"{one}: {found.failed}" for one, found in outcomes.items() if found.failed]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(outcomes)} runs failed, e.g. {failed[0]}. The others are kept; "
            "the same command tries these again."
        )


def _said(found: trial.Outcome, by: str | None) -> str:
    if found.failed or found.diverged:
        return found.failed or f"diverged: {found.diverged}"
    shown = by or results.DEFAULT
    value = found.measures.get(shown)
    return f"{found.round} rounds" if value is None else f"{shown} {value:.4g}"

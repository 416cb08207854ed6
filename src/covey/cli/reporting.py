"""`covey report` and `covey watch`: a run in the browser and in the terminal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, errors, mistakes_in_one_line
from covey.cli.options import RunFolder
from covey.runs import interrupt


def report_command(
    directory: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.html",
            help="File of the page. Default: report.html in the directory.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="PLACE",
            help="Tables of the sites of a fit. Default: those that it was fitted to, if they are "
            "still there.",
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Serve the page to browsers of this machine while the run goes on."
        ),
    ] = False,
    port: Annotated[
        int, typer.Option("--port", help="Port on 127.0.0.1 for --serve. Default: any free port.")
    ] = 0,
) -> None:
    """Write the report of a run as one HTML page, or serve it while the run goes on."""
    with mistakes_in_one_line():
        if serve:
            if out is not None or data is not None:
                raise ValueError(
                    "--out and --data are for writing a page, --serve shows one: choose one"
                )
            _serve(directory, port)
            return
        path = out or directory / "report.html"
        _write(directory, path, data)
        console.print(Text(f"the report is {path}"), soft_wrap=True)


def watch_command(directory: RunFolder) -> None:
    """Follow a run in the terminal: rounds, measures, time left. Ctrl-C ends only the view."""
    with mistakes_in_one_line():
        from covey.report.watching import watch

        with interrupt.raised():
            watch(directory, console)


def _write(directory: Path, path: Path, data: Path | None) -> None:
    """The page of a fit, of a run that can be opened again, or of the files of a run."""
    from covey.report.from_files import content_of_files, read_state

    is_fit = (directory / "fit.json").exists()
    if data is not None and not is_fit:
        raise ValueError(f"--data is for fits, and {directory} holds none: leave it out")
    if is_fit:
        _write_fit(directory, path, data)
        return
    from covey.report import from_run, page

    state = read_state(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "data" in state.tables and not state.running:
        from covey.config import configuration

        done = configuration.reopen(directory)
        from_run.write(done, path, settings=state.settings)
        return
    why = "is still going" if state.running else "was started from Python"
    _note(f"the run {why}: the page is made of its files, without its posterior")
    page.write(content_of_files(directory), path)


def _write_fit(directory: Path, path: Path, data: Path | None) -> None:
    from covey.fitting.store import load_fit

    found = load_fit(directory, data=data)
    data_path = found.stored.get("data_path")
    if data is None and data_path is not None and Path(data_path).exists():
        found.all_tables()  # where the fit has read them
    elif data is None:
        gone = "" if data_path is None else f": {data_path} is not there any more"
        _note(f"without the sites' tables (--data) there are no sections on predictions{gone}")
    found.report(path)


def _note(text: str) -> None:
    errors.print(Text(text), style="yellow", soft_wrap=True)


def _serve(directory: Path, port: int) -> None:
    from covey.report.serving import server_of

    with interrupt.raised(), server_of(directory, port=port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        console.print(Text(f"{address} shows {directory}; Ctrl-C ends it"), soft_wrap=True)
        server.serve_forever()

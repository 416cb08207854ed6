"""`covey report` and `covey watch`: a run in the browser and in the terminal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, errors, mistakes_in_one_line

_Directory = Annotated[Path, typer.Argument(help="The run directory.", metavar="RUN_DIRECTORY")]


def report_command(
    directory: _Directory,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="The page; report.html there by default."),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Show the page to browsers of this machine as the run goes."),
    ] = False,
    port: Annotated[
        int, typer.Option("--port", help="Port on 127.0.0.1 for --serve; any free one by default.")
    ] = 0,
) -> None:
    """Write the report of a run as one HTML page, or serve it while the run goes."""
    with mistakes_in_one_line():
        if serve:
            if out is not None:
                raise ValueError("--out writes a page and --serve shows one: choose one of them")
            _serve(directory, port)
            return
        path = out or directory / "report.html"
        _write(directory, path)
        console.print(Text(f"written to {path}"), soft_wrap=True)


def watch_command(directory: _Directory) -> None:
    """Follow a run in the terminal: rounds, measures, what is left. Ctrl-C stops only this."""
    with mistakes_in_one_line():
        from covey.report.watching import watch

        watch(directory, console)


def _write(directory: Path, path: Path) -> None:
    from covey.report import from_files, from_run, page

    state = from_files.read_state(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "\n[data]\n" in f"\n{state.settings}" and not state.running:
        from covey.config import configuration

        done, unseen = configuration.reopen(directory)
        from_run.write(done, path, settings=state.settings, unseen=unseen)
        return
    why = "is still going" if state.running else "was started from Python"
    errors.print(
        Text(f"the run {why}: the page is made of its files, without its posterior"),
        style="yellow",
        soft_wrap=True,
    )
    page.write(from_files.content_of_files(directory), path)


def _serve(directory: Path, port: int) -> None:
    from covey.report.serving import server_of

    with server_of(directory, port=port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        console.print(Text(f"{address} shows {directory}; Ctrl-C ends it"), soft_wrap=True)
        server.serve_forever()

"""The command line: a thin layer on `covey.config` and `covey.runs`, one file per group of
commands. Everything heavy is imported by the command that needs it, inside the function.
"""

import warnings
from importlib.metadata import version
from typing import Annotated

import typer

from covey.cli import (
    demonstrating,
    deploy_demo,
    deploying,
    fitting,
    listing,
    posteriors,
    privacy,
    reporting,
    reproducing,
    running,
    site,
    stopping,
    sweeping,
)
from covey.cli.consoles import console, show_warning
from covey.core.compiling import keep_programs

app = typer.Typer(
    name="covey",
    help="Federated Bayesian inference: learning from data that never leave their owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
deploy_app = typer.Typer(
    help="A study between organisations: kits, server, sites, coordinator.", no_args_is_help=True
)
privacy_app = typer.Typer(
    help="The privacy of a run, planned before it starts.", no_args_is_help=True
)
site_app = typer.Typer(
    help="Commands of the owner of a site: check, approve, withdraw.", no_args_is_help=True
)

# Every command is a function of the file of its group, and one line here, in the order of
# `covey --help`.
app.command("fit")(fitting.fit_command)
app.command("predict")(fitting.predict_command)
app.command("add-client")(fitting.add_client_command)
app.command("compare")(fitting.compare_command)
app.command("run")(running.run_command)
app.command("sweep")(sweeping.sweep_command)
app.command("posterior")(posteriors.posterior_command)
app.command("report")(reporting.report_command)
app.command("watch")(reporting.watch_command)
app.command("list")(listing.list_command)
app.command("reproduce")(reproducing.reproduce_command)
app.command("results")(reproducing.results_command)
app.command("demo")(demonstrating.demo_command)
deploy_app.command("init")(deploying.init_command)
deploy_app.command("server")(deploying.server_command)
deploy_app.command("site")(deploying.site_command)
deploy_app.command("run")(deploying.run_command)
deploy_app.command("fit")(deploying.fit_command)
deploy_app.command("status")(deploying.status_command)
deploy_app.command("resume")(deploying.resume_command)
deploy_app.command("stop")(deploying.stop_command)
deploy_app.command("demo")(deploy_demo.demo_command)
app.add_typer(deploy_app, name="deploy")
privacy_app.command("plan")(privacy.plan_command)
app.add_typer(privacy_app, name="privacy")
site_app.command("check")(site.check_command)
site_app.command("approve")(site.approve_command)
site_app.command("withdraw")(site.withdraw_command)
app.add_typer(site_app, name="site")


def main() -> None:
    """The entry point."""
    stopping.end_on_signals()
    warnings.showwarning = show_warning
    keep_programs()
    app()


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    if show_version:
        console.print(f"covey {version('covey')}", highlight=False)
        raise typer.Exit

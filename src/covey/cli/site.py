"""`covey site check`, `approve` and `withdraw`: the commands of a site's owner."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line
from covey.cli.options import StudyName

SiteOption = Annotated[
    Path, typer.Option("--site", help="The site's own file.", metavar="SITE.toml")
]
HERE = Path("site.toml")
SiteToml = Annotated[Path, typer.Argument(help="The site's own file.", metavar="SITE.toml")]


def check_command(site: SiteToml) -> None:
    """Describe in words the information that a study would get from this site."""
    with mistakes_in_one_line():
        from covey.deploy.owner_words import sentences_of
        from covey.deploy.site_file import read

        for sentence in sentences_of(read(site)):
            console.print(Text(sentence), soft_wrap=True)


def approve_command(
    study: Annotated[str, typer.Argument(help="Name of the waiting study.", metavar="STUDY")],
    site: SiteOption = HERE,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest",
            help="Digest of the study, or its beginning, as the coordinator gave it to you. "
            "Default: any.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve without being asked, in scripts.")
    ] = False,
) -> None:
    """Show a waiting study, and approve it after you confirm."""
    with mistakes_in_one_line():
        from covey.deploy.approval import Approvals
        from covey.deploy.audit import AuditLog
        from covey.deploy.owner_words import approval_sentences
        from covey.deploy.site_file import read

        found = read(site)
        folder = found.site.state
        if not folder.is_dir():
            raise ValueError(f"no study has come to {found.name} yet: there is no folder {folder}")
        approvals = Approvals(folder)
        entry = approvals.find(study, digest=digest)
        for sentence in approval_sentences(found, study, entry):
            console.print(Text(sentence), soft_wrap=True)
        if entry.state == "approved":
            return
        if not yes:
            typer.confirm("Approve this study?", abort=True)
        entry = approvals.approve(study, digest=entry.digest)
        AuditLog(folder / "audit.jsonl").write(
            "approved", study=study, digest=entry.digest, what=f"approved by the {entry.by}"
        )
        console.print(Text(f"approved {study} {entry.digest}"), soft_wrap=True)


def withdraw_command(
    study: StudyName,
    site: SiteOption = HERE,
) -> None:
    """Take back the approval of a study: nothing more leaves for it, even if it is running."""
    with mistakes_in_one_line():
        from covey.deploy.approval import Approvals
        from covey.deploy.audit import AuditLog
        from covey.deploy.site_file import read

        found = read(site)
        folder = found.site.state
        if not folder.is_dir():
            raise ValueError(f"no study has come to {found.name} yet: there is no folder {folder}")
        entry = Approvals(folder).withdraw(study)
        AuditLog(folder / "audit.jsonl").write(
            "withdrawn", study=study, digest=entry.digest, what="withdrawn by the owner"
        )
        console.print(
            Text(
                f"withdrew {study} {entry.digest}: its next message is refused, and the refusal "
                f"tells its server why; covey site approve {study} lets it continue"
            ),
            soft_wrap=True,
        )

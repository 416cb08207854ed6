"""One study at one site: its folder, the steps before the first round, and the rounds themselves.

A server greets a site in steps, each a JSON message: "describe" brings the study, "agree" what all
sites make their rows by, "start" what they need for rounds, "result" what all share in the end.
What came in each step is kept in `setup.json`, so that a site that was killed opens the study again
from its own disk, in the middle of the rounds.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Key

from covey.core import atomic_files
from covey.core.algorithm import Plan
from covey.core.cohort import full
from covey.core.compiling import compile_quickly
from covey.core.shard import Shard, bucket_size
from covey.data.federated import SPLITS
from covey.data.roster import spec_from
from covey.deploy.ledger import SiteLedger
from covey.deploy.part import Part, Work
from covey.deploy.plain_values import checked
from covey.deploy.policy import check_study
from covey.deploy.private_files import close_to_others, make_folder
from covey.deploy.questions import Answers
from covey.deploy.refusal import DeclinedError
from covey.deploy.secret_key import study_key
from covey.deploy.site_file import SiteFile
from covey.deploy.site_table import digest_of, table_for_studies
from covey.deploy.study import Study, from_json
from covey.engines.site import MISFITS, Site
from covey.engines.site_programs import Workshop, padded
from covey.engines.site_store import SqliteStore
from covey.privacy.mechanism import LangevinMechanism


class Setup(NamedTuple):
    """A site's record of the steps before the first round.

    Attributes:
        study: The study's text.
        server: The identity of the server that conducts it.
        position: The site's index among those of the study.
        table: Digest of the site's table when it was described.
        sites: Count of the sites that the study names.
        agreed: The content of the step "agree": the design of all sites.
        is_agreed: Whether it has come.
        started: The settings of rounds; None before they came.
    """

    study: str
    server: str
    position: int
    table: str
    sites: int
    agreed: Any = None
    is_agreed: bool = False
    started: Any = None


class StudyAtSite:
    """A study that the site takes part in.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study, which is approved.
        setup: The stored setup of the study.
    """

    def __init__(self, site: SiteFile, study: Study, setup: Setup):
        self.site, self.study, self.setup = site, study, setup
        self.folder = folder_of(site, study.name)
        self.ledger = SiteLedger(site.site.state, site.privacy)
        table = table_for_studies(site)
        if digest_of(table) != setup.table:
            raise DeclinedError(
                "table",
                f"the table of {site.name!r} has changed since the study began there; put the "
                "table back, or start the study under another name",
            )
        self.part: Part = _part_of(study)(site, study, table, setup.position)
        self.answers = Answers(self.folder / "questions", once=study.kind == "fit")
        self.mechanism: LangevinMechanism | None = None
        self.member: Site | None = None
        self._store: SqliteStore | None = None
        if setup.is_agreed:
            self.part.agree(setup.agreed)
        if setup.started is not None:
            self._open()

    def agree(self, content: Any) -> dict[str, Any]:
        """Take the design of all sites, once: the difference of two answers could be that
        of a single row.
        """
        if self.setup.is_agreed and content != self.setup.agreed:
            raise self._another_design()
        said = self.part.agree(content)
        self._keep(self.setup._replace(agreed=content, is_agreed=True))
        return said

    def start(self, content: Any) -> None:
        """Take the settings of rounds; the site is ready for them when this returns."""
        if not self.setup.is_agreed:
            raise DeclinedError("message", "the study has not been agreed on at this site yet")
        if self.setup.started is not None and content != self.setup.started:
            raise self._another_design()
        if self.member is None:
            self._keep(self.setup._replace(started=content))
            try:
                self._open()
            except BaseException:
                self._keep(self.setup._replace(started=None))
                raise

    def write(self, content: Any) -> Path:
        """Write the site's own results."""
        if self.member is None:
            raise DeclinedError("message", "the study has not been started at this site")
        folder = self.site.site.state / "results" / self.study.name
        make_folder(folder)
        try:
            self.part.write(content, self.member, folder)
        except MISFITS as error:  # the server may publish arrays of any shapes
            raise DeclinedError(
                "message",
                f"{self.site.name} cannot use the result of the study, or the state published "
                "with it; the audit log there gives the reason",
                f"{type(error).__name__}: {error}",
            ) from error
        close_to_others(folder)
        return folder

    def close(self) -> None:
        """Let another process open the study."""
        if self._store is not None:
            self._store.close()
        self._store = self.member = None

    def _another_design(self) -> DeclinedError:
        return DeclinedError(
            "study",
            f"the study {self.study.name!r} has been agreed on at {self.site.name} with another "
            "design, and sums are told of one; a changed study needs another name",
        )

    def _keep(self, setup: Setup) -> None:
        text = json.dumps(setup._asdict(), sort_keys=True)
        atomic_files.write(self.folder / "setup.json", text.encode(), private=True)
        self.setup = setup

    def _open(self) -> None:
        """Make the method on the site's rows, and open the store of its rounds."""
        started = self.setup.started
        if not isinstance(started, Mapping) or set(started) != {"spec", "shared"}:
            raise DeclinedError("message", "a start needs a specification and what is shared")
        work = self.part.work(started["shared"])
        try:
            spec = spec_from(started["spec"], "the server")
        except ValueError as error:
            raise DeclinedError("message", str(error)) from None
        own = int(work.data.counts("train")[0])
        self._check_spec(work, spec, own)
        self.mechanism = mechanism_of(work, own, spec.examples or own)
        self.ledger.need_accounting(self.study.name, self.study.method, self.mechanism)
        self._store = SqliteStore(
            self.folder / "store.sqlite",
            study=self.study.name,
            digest=self.study.digest,
            site=self.site.name,
        )
        shards: dict[str, Shard] = {}
        for split in SPLITS:
            rows = work.data.shard(0, split)
            shards[split] = padded(rows, bucket_size(rows.capacity))
        capacity = shards["train"].capacity
        workshop = Workshop(
            work.method, spec, seed=self.study.seed, channel=work.channel, own=capacity
        )
        shows = self.site.metrics.shown_to == "server"
        self.member = Site(
            self.site.name,
            self.setup.position,
            workshop,
            shards,
            study=self.study.name,
            digest=self.study.digest,
            store=self._store,
            secret=None if self.site.privacy.randomness == "study" else self._key(),
            report=None if shows else lambda what, values: None,
            decline=self.part.decline,
            most_bytes=self.site.limits.most_bytes,
        )

    def _key(self) -> Key[Array, ""]:
        return study_key(self.site, json.dumps(self.setup._asdict(), sort_keys=True))

    def _check_spec(self, work: Work, spec: Any, own: int) -> None:
        """A refusal of shapes or counts that cannot be those of a study with these rows."""
        here = work.data.spec
        alike = (spec.rows, spec.features, spec.classes) == (here.rows, here.features, here.classes)
        examples, clients = spec.examples or 0, spec.clients or 0
        # Methods make arrays of these sizes, so that no server may choose them at will.
        possible = own <= spec.capacity <= bucket_size(examples) and own <= examples
        if not alike or not possible or not 1 <= clients <= self.setup.sites:
            raise DeclinedError("message", "the specification does not fit the rows of this site")


def folder_of(site: SiteFile, study: str) -> Path:
    """The folder of a study in the site's state."""
    return site.site.state / "studies" / study


def read_setup(site: SiteFile, study: str) -> Setup | None:
    """The site's stored setup of a study; None where it does not know the study.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study's name.
    """
    path = folder_of(site, study) / "setup.json"
    if not path.exists():
        return None
    try:
        return checked(Setup, json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise DeclinedError(
            "store", f"what {site.name} has kept of {study!r} is damaged", f"{path}: {error}"
        ) from None


def begin_study(
    site: SiteFile, study: Study, *, server: str, position: int, sites: int
) -> StudyAtSite:
    """A study that has just been described to the site, or is described again.

    Before the first round another server may conduct it, e.g. one whose first attempt failed. What
    sums were told of stays as it was: the table and the design, and in a run the site's index,
    which its splits are drawn with.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study, which is approved.
        server: The identity of the server.
        position: The site's index among those of the study.
        sites: Count of the sites that the study names.

    Raises:
        DeclinedError: Another server conducts this study, or the site has another index in it.
    """
    known = read_setup(site, study.name)
    if known is not None and known.started is not None:
        check_server(site, study.name, known, server)
    told = known is not None and (known.is_agreed or study.kind == "run")
    if known is not None and told and known.position != position:
        raise DeclinedError(
            "study",
            f"{site.name} has another index in this study than before: the list of sites has "
            "changed; a changed study needs another name",
        )
    if known is not None and known.is_agreed:
        setup = known._replace(server=server)
    else:
        table = digest_of(table_for_studies(site))
        setup = Setup(study.text, server, position, table, sites)
    make_folder(folder_of(site, study.name))
    found = StudyAtSite(site, study, setup)
    if setup != known:
        found._keep(setup)
    return found


def check_server(site: SiteFile, study: str, known: Setup, server: object) -> None:
    """A refusal of a server that is not the one which began the study here.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study's name.
        known: The site's stored setup of it.
        server: The identity that a greeting names.
    """
    if known.server != server:
        raise DeclinedError(
            "server",
            f"the study {study!r} is conducted at {site.name} by another server, or by one whose "
            "directory was lost: two servers cannot share one study; use another name",
        )


def reopened(site: SiteFile, study: str, digest: str) -> StudyAtSite:
    """A study that the site has begun before, e.g. before it was restarted.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study's name.
        digest: Digest of its configuration, as a message names it.

    Raises:
        DeclinedError: The site does not know it, not with this configuration, or allows it no more.
    """
    known = read_setup(site, study)
    if known is None:
        raise DeclinedError("study", f"{site.name} has not been greeted for the study {study!r}")
    found = from_json(known.study)
    if found.digest != digest:
        raise DeclinedError(
            "study",
            f"{site.name} takes part in {study!r} with the configuration {found.digest[:16]}, and "
            f"got a message of {digest[:16]}; a changed study needs another name",
        )
    check_study(site, found)  # the owner may have changed the permissions
    return StudyAtSite(site, found, known)


def mechanism_of(work: Work, own: int, examples: int) -> LangevinMechanism | None:
    """The privacy mechanism of a round for one of the site's rows; None for a method without one.

    The other sites enter as one client with the rest of the rows, and everyone takes part in every
    round: this reveals the most.

    Args:
        work: The method on the site's rows.
        own: Training rows of the site.
        examples: Training rows of all sites together.
    """
    method = work.method
    if method.privacy is None or method.preparation is not None:
        return None
    counts = np.array([own, max(examples - own, 0)], np.int64)
    found = method.privacy(Plan(counts, full()(counts)))
    return found if isinstance(found, LangevinMechanism) else None


def _part_of(study: Study) -> Callable[..., Part]:
    """The site's part in this kind of study. A job is one study: the other kind is not imported,
    which saves a second of its start.
    """
    if study.kind == "fit":
        compile_quickly()
        from covey.deploy.fit_part import FitPart

        return FitPart
    from covey.deploy.run_part import RunPart

    return RunPart

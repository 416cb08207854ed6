"""A site of a study: a function from the bytes of a message to the bytes of its answer."""

import contextlib
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

from covey.core import protocol
from covey.core.protocol import SERVER, Envelope, Kind, Reason, Refusal
from covey.core.wire import WireError
from covey.deploy import site_file, site_study
from covey.deploy.approval import Approvals
from covey.deploy.audit import AuditLog
from covey.deploy.ledger import SiteLedger
from covey.deploy.policy import check_study
from covey.deploy.private_files import close_to_others, make_folder
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.site_study import StudyAtSite
from covey.deploy.study import StudyError, from_json
from covey.engines.messages import unpack_question
from covey.engines.site import refused
from covey.engines.site_memory import RefusedError, check_epoch, repeated

_WORDS = {
    Kind.ROUND: "an upload: sums over all rows that the study uses",
    Kind.QUERY: "an answer to a question: sums over all rows that the study uses",
    Kind.EVALUATE: "metrics of the site's rows",
    Kind.STOP: "that the end of the study was heard",
}
_STEPS = {
    "describe": "a description of the table: kinds of columns, levels, moments, counts",
    "agree": "the number of rows, and sums of their columns",
    "start": "that the site is ready",
    "result": "that the site has written its own results",
}


def open_handler(site_toml: str | Path) -> "SiteHandler":
    """Open a site as its owner has described it.

    A transport needs nothing else of Covey at a site: call the handler with each message that comes
    from the server, and send back what it returns. One handler serves all studies of the site, one
    message after the other, from any thread. State is in the site's folder, by study: a new process
    opens the same handler and continues.

    Args:
        site_toml: The site's own file; see `covey.deploy.site_file`.

    Returns:
        The handler, `handler(message: bytes) -> bytes`. `handler.close()` lets another process open
        the site's studies.

    Raises:
        SiteFileError: The file has mistakes.
        OSError: The site's folder cannot be made.
    """
    found = site_file.read(site_toml)
    make_folder(found.site.state)
    close_to_others(found.site.state)
    return SiteHandler(found)


class SiteHandler:
    """A site; made by `open_handler`."""

    def __init__(self, site: SiteFile):
        self.site = site
        self._approvals = Approvals(site.site.state)
        self._audit = AuditLog(site.site.state / "audit.jsonl")
        self._ledger = SiteLedger(site.site.state, site.privacy)
        self._studies: dict[str, StudyAtSite] = {}
        self._lock = threading.Lock()

    def __call__(self, message: bytes) -> bytes:
        """Answer a message.

        Args:
            message: The bytes that came from the server.

        Returns:
            The answer, or a refusal that says why there is none. Either is in the audit log.

        Raises:
            WireError: The bytes are no message at all, so that there is nobody to answer.
        """
        try:
            most = self.site.limits.most_bytes
            envelope, body = protocol.open_envelope(message, most=most)
            if envelope.is_answer:
                raise WireError("a site answers, and is not answered")
        except WireError as error:
            self._log("refused", study="", what=str(error), reason="message", bytes=len(message))
            raise
        with self._lock:
            try:
                reply, what = self._answer(message, envelope, body)
                if len(reply) > most:
                    raise DeclinedError(
                        "message", f"the answer has {len(reply)} bytes, and {most} may leave"
                    )
                if protocol.open_envelope(reply)[0].kind == Kind.REFUSAL:
                    self._note("refused", envelope, reply, what, reason="protocol")
                else:
                    self._note("sent", envelope, reply, what)
                return reply
            except DeclinedError as error:
                refusal = Refusal(_reason_of(error), error.why)
                reply = refused(message, envelope, refusal)
                with contextlib.suppress(OSError):  # a refusal tells nothing of rows
                    self._note("refused", envelope, reply, error.detail, reason=error.reason)
                return reply
            except OSError as error:
                return self._failed(message, envelope, error)

    def close(self) -> None:
        """Let another process open the site's studies."""
        for one in self._studies.values():
            one.close()
        self._studies = {}

    def __enter__(self) -> "SiteHandler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, message: bytes, envelope: Envelope, body: bytes) -> tuple[bytes, str]:
        """The answer, and its description in words."""
        if (envelope.receiver, envelope.sender) != (self.site.name, SERVER):
            raise DeclinedError(
                "message",
                f"the message is from {envelope.sender!r} to {envelope.receiver!r}, and this is "
                f"{self.site.name!r}",
            )
        try:
            if envelope.kind == Kind.HELLO:
                said, what = self._greeted(envelope, protocol.unpack_text(body))
                return protocol.seal(envelope.answer(message), _packed(said)), what
            study = self._study(envelope)
            if study.member is None:
                raise DeclinedError("message", "the study has not been started at this site")
            if envelope.kind == Kind.QUERY:
                return self._asked(study, envelope, message, body)
            if envelope.kind in (Kind.ROUND, Kind.EVALUATE):
                self._count(study, envelope, message)
            reply = study.member.handle(message)
            refusal = self._refusal_in(reply)
            if refusal is not None:
                return reply, refusal.text
            return reply, _WORDS.get(envelope.kind, "an acknowledgement")
        except WireError as error:
            raise DeclinedError("message", f"the message cannot be read: {error}") from None

    def _asked(
        self, study: StudyAtSite, envelope: Envelope, message: bytes, body: bytes
    ) -> tuple[bytes, str]:
        """The answer to a question: the one that it had, or a new one, kept before it leaves."""
        assert study.member is not None
        name, number, _ = unpack_question(body)
        what = f"{_WORDS[Kind.QUERY]} ({name!r:.50}, number {number})"
        current = study.member.store.load()
        kept = study.answers.find(number, body)
        if kept is not None and envelope.epoch >= max(current.epoch, current.prepared_in):
            return protocol.seal(envelope.answer(message), kept), f"{what}, again"
        self._count(study, envelope, message)
        reply = study.member.handle(message)
        refusal = self._refusal_in(reply)
        if refusal is not None:
            return reply, refusal.text
        study.answers.keep(number, body, protocol.open_envelope(reply)[1])
        return reply, what

    def _refusal_in(self, reply: bytes) -> Refusal | None:
        """The refusal of a study's member; an error where it may not leave as it is."""
        opened, content = protocol.open_envelope(reply)
        if opened.kind != Kind.REFUSAL:
            return None
        refusal = protocol.unpack_refusal(content)
        if refusal.reason == Reason.FAILED:  # its text names files of the site
            raise DeclinedError("disk", self._unwritten, refusal.text)
        return refusal

    def _greeted(self, envelope: Envelope, content: Any) -> tuple[dict[str, Any], str]:
        """The answer to a step before the first round, or after the last."""
        step = content.get("step") if isinstance(content, dict) else None
        if not isinstance(step, str) or step not in _STEPS:
            raise DeclinedError(
                "message", f"there is no step {step!r:.50}; steps: {', '.join(_STEPS)}"
            )
        self._check_version(content.get("version"))
        if step == "describe":
            return self._described(envelope, content), _STEPS[step]
        study, given = self._study(envelope), content.get("content")
        site_study.check_server(self.site, envelope.study, study.setup, content.get("server"))
        if step == "agree":
            said = study.agree(given)
            for remark in study.part.remarks():
                self._log("started", study=study.study.name, what=remark)
            return said, _STEPS[step]
        if step == "start":
            study.start(given)
            return {"ready": True}, _STEPS[step]
        folder = study.write(given)
        self._log("result", study=study.study.name, what=f"results are in {folder}")
        return {"written": True}, _STEPS[step]

    def _check_version(self, theirs: object) -> None:
        """A refusal of a server with another version, whose sums would be of something else."""
        own = version("covey")
        if theirs != own:
            named = theirs[:50] if isinstance(theirs, str) else "of a version that it does not name"
            raise DeclinedError(
                "version",
                f"{self.site.name} runs Covey {own}, and the server Covey {named}: install the "
                "same version at both",
            )

    def _described(self, envelope: Envelope, content: dict[str, Any]) -> dict[str, Any]:
        given, server = content.get("content"), content.get("server")
        match given:
            case {"study": str(text), "sites": [*sites]} if isinstance(server, str):
                pass
            case _:
                raise DeclinedError("message", "a greeting needs a study, its sites and a server")
        if sites.count(self.site.name) != 1:
            raise DeclinedError("study", f"the study is not for {self.site.name}")
        position = sites.index(self.site.name)
        try:
            study = from_json(text)
        except StudyError as error:
            raise DeclinedError("study", f"the study cannot be used: {error}") from None
        if (study.name, study.digest) != (envelope.study, envelope.digest):
            raise DeclinedError("study", "the study is not the one that the message names")
        check_study(self.site, study)
        if self._approvals.admit(study, rule=self.site.studies.approve):
            words = " ".join(study.words())
            self._log("approved", study=study.name, what=f"approved by the owner's rule. {words}")
        self._forget(study.name)
        found = site_study.begin_study(
            self.site, study, server=server, position=position, sites=len(sites)
        )
        self._studies[study.name] = found
        return found.part.describe()

    def _study(self, envelope: Envelope) -> StudyAtSite:
        """A study that has begun, from memory or from disk, and is still approved."""
        found = self._studies.get(envelope.study)
        if found is None or found.study.digest != envelope.digest:
            found = site_study.reopened(self.site, envelope.study, envelope.digest)
            self._forget(envelope.study)
            self._studies[envelope.study] = found
        self._approvals.need(envelope.study, envelope.digest)
        return found

    def _forget(self, study: str) -> None:
        if study in self._studies:
            self._studies.pop(study).close()

    def _count(self, study: StudyAtSite, envelope: Envelope, message: bytes) -> None:
        """Count an answer against limits and budget, unless it was given before."""
        assert study.member is not None
        if envelope.kind == Kind.EVALUATE and self.site.metrics.shown_to == "nobody":
            raise DeclinedError("metrics", f"{self.site.name} keeps its metrics to itself")
        memory = study.member.store.load()
        try:
            check_epoch(memory, envelope)
            is_round = envelope.kind == Kind.ROUND
            if is_round and repeated(memory, envelope, message) is not None:
                return
        except RefusedError:  # as the site itself is about to say
            return
        name, most = study.study.name, self.site.limits.most_rounds
        if study.part.most_answers is not None:
            most = min(most, study.part.most_answers)
        if self._ledger.rounds(name) >= most:
            raise DeclinedError(
                "rounds", f"{self.site.name} answers at most {most} rounds and questions per study"
            )
        if envelope.kind == Kind.QUERY and self.site.privacy.budget is None:
            raise DeclinedError(
                "budget", f"{self.site.name} keeps a privacy budget and answers no questions"
            )
        self._ledger.charge(name, study.mechanism)

    def _note(self, event: Any, envelope: Envelope, reply: bytes, what: str, **more: str) -> None:
        self._log(
            event,
            study=envelope.study,
            what=what,
            kind=envelope.kind.name.lower(),
            digest=envelope.digest[:16],
            epoch=envelope.epoch,
            round=envelope.round,
            bytes=len(reply),
            **more,
        )

    def _log(self, event: Any, **values: Any) -> None:
        self._audit.write(event, **values)

    @property
    def _unwritten(self) -> str:
        return (
            f"{self.site.name} cannot write its state after this message, so that nothing "
            "leaves; is its disk full?"
        )

    def _failed(self, message: bytes, envelope: Envelope, error: OSError) -> bytes:
        """The refusal of a site that cannot write its state."""
        detail = f"{error.strerror or error} ({error.filename or 'the site folder'})"
        reply = refused(message, envelope, Refusal(Reason.FAILED, self._unwritten))
        with contextlib.suppress(OSError):
            self._note("refused", envelope, reply, detail, reason="disk")
        return reply


def _reason_of(error: DeclinedError) -> Reason:
    if error.reason == "store":
        return Reason.MISSING
    return Reason.FAILED if error.reason in ("message", "disk") else Reason.DECLINED


def _packed(said: dict[str, Any]) -> bytes:
    try:
        return protocol.pack_text(said)
    except ValueError as error:
        raise DeclinedError(
            "message", f"what the site has to say of its table is too long: {error}"
        ) from None

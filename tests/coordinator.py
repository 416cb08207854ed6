"""A coordinator with a good certificate that says what it likes to one site."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import covey
from covey.core import protocol
from covey.core.protocol import SERVER, Envelope, Kind
from covey.core.shard import bucket_size
from covey.deploy.fit_said import description_of
from covey.deploy.study import Study
from covey.fitting.combination import combine


def design_of(study: Study, said: list) -> dict:
    """The design that an honest server makes of what sites have said, as it travels."""
    described = [description_of(study, one["site"], one) for one in said]
    made = combine(described, study.formula, missing=study.tables["fit"]["missing"])
    plain = replace(made, rows={}, dropped={}, filled={}).to_json()
    return json.loads(json.dumps(plain))


class Coordinator:
    """Sends messages of a study to a site's handler, each well formed and with a right checksum."""

    def __init__(self, handler: Callable[[bytes], bytes], study: Study, site: str, sites: list):
        self.handler, self.study, self.site, self.sites = handler, study, site, sites
        self.server = "the first server"

    def message(self, kind: Kind, body: bytes = b"", *, epoch: int = 1, round_: int = 0) -> bytes:
        head = (self.study.name, self.study.digest, epoch, round_, SERVER, self.site)
        return protocol.seal(Envelope(kind, *head), body)

    def send(self, kind: Kind, body: bytes = b"", **envelope: int) -> bytes | str:
        """The body of the site's answer; the words of its refusal."""
        reply, found = protocol.open_envelope(self.handler(self.message(kind, body, **envelope)))
        refused = reply.kind == Kind.REFUSAL
        return protocol.unpack_refusal(found).text if refused else found

    def step(self, step: str, content: Any) -> Any:
        """What the site says in a step before the rounds; the words of its refusal."""
        about = {"step": step, "server": self.server, "version": covey.__version__}
        text = about | {"content": content}
        found = self.send(Kind.HELLO, protocol.pack_text(text))
        return found if isinstance(found, str) else json.loads(found)

    def describe(self, sites: list | None = None) -> Any:
        return self.step("describe", {"study": self.study.text, "sites": sites or self.sites})

    def begin_fit(self) -> None:
        """Take the steps to the first round of a formula; all sites say the same."""
        said = self.describe()
        design = design_of(self.study, [said | {"site": name, "labels": {}} for name in self.sites])
        spec = self.step("agree", design)["entry"]["spec"]
        capacity = bucket_size(spec["examples"])
        spec |= {"clients": len(self.sites), "capacity": capacity}
        shared = {"priors": [], "means": [], "printed": {}}
        assert self.step("start", {"spec": spec, "shared": shared}) == {"ready": True}

"""A site's own filters: they see every message in either direction, whatever the job says."""

from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from covey.deploy.nvflare.tasks import MESSAGE


class PayloadCap(Filter):
    """Blocks a message of more than `most_bytes` bytes, in or out."""

    def __init__(self, most_bytes: int):
        super().__init__()
        if most_bytes <= 0:
            raise ValueError(f"most_bytes is {most_bytes}; give a positive number of bytes")
        self.most_bytes = most_bytes

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Pass the message on, or block it."""
        message = shareable.get(MESSAGE)
        if message is not None and len(message) > self.most_bytes:
            raise ContentBlockedException(
                f"a message of {len(message)} bytes; the site allows {self.most_bytes}"
            )
        return shareable

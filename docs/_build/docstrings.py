"""How docstrings become pages: doctests as code, inner products in brackets that are not HTML."""

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    """Names the section of doctests as Griffe knows it, and keeps <u, v> from being a tag."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring of an object before it is read as sections."""
        if obj.docstring is None:
            return
        text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
        obj.docstring.value = re.sub(r"<(\w+, [^<>\n]*)>", "⟨\\1⟩", text)

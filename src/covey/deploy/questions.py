"""The questions that a site has answered: the same one again has the same answer, and where a study
asks each once, another one in its place has none.
"""

import hashlib
from pathlib import Path

from covey.core import atomic_files
from covey.deploy.private_files import make_folder
from covey.deploy.refusal import DeclinedError

_DIGEST = hashlib.sha256().digest_size


class Answers:
    """Answers to questions, in a folder of the study: one file each, written before it leaves.

    Args:
        folder: The folder; it is made when it is needed.
        once: Whether a number stands for one question. The fit of a formula numbers all its
            questions. A run that evaluates asks anew after some rounds, from 0 on.
    """

    def __init__(self, folder: Path, *, once: bool):
        self._folder, self._once = folder, once

    def find(self, number: int, question: bytes) -> bytes | None:
        """The answer that was given to a question; None where there was none.

        Args:
            number: The question's number.
            question: Its name, number and content.

        Raises:
            DeclinedError: Another question of this number was answered.
        """
        path = self._path(number, question)
        if not path.exists():
            return None
        kept = path.read_bytes()
        if kept[:_DIGEST] != hashlib.sha256(question).digest():
            raise DeclinedError(
                "question",
                f"question {number} of the study was answered already, with another content, and "
                "is answered once",
            )
        return kept[_DIGEST:]

    def keep(self, number: int, question: bytes, answer: bytes) -> None:
        """Keep an answer before it leaves.

        Args:
            number: The question's number.
            question: Its name, number and content.
            answer: The body of the answer.

        Raises:
            OSError: It could not be written.
        """
        make_folder(self._folder)
        path = self._path(number, question)
        atomic_files.write(path, hashlib.sha256(question).digest(), answer, private=True)

    def _path(self, number: int, question: bytes) -> Path:
        return self._folder / (str(number) if self._once else hashlib.sha256(question).hexdigest())

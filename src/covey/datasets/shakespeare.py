"""Next-character prediction on the plays of Shakespeare, one client for each speaking role."""

import gzip
import json
import string
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8

from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.datasets import sources

WINDOW = 80
VOCABULARY = "".join(sorted("\n !\"&'(),-.:;>?[]}" + string.digits + string.ascii_letters))
"""The 80 characters of LEAF. Any other character has the code 80, so there are 81 labels."""

_FILE = "shakespeare/shakespeare_characters.jsonl.gz"


def shakespeare(
    *, min_characters: int = 2000, window: int = WINDOW, stride: int | None = None
) -> FederatedData:
    """The next character in the plays of Shakespeare: one client per speaking role.

    x has the codes of some characters in turn, y the code of the next. Clients are named
    play:ROLE.

    Args:
        min_characters: Characters that a role must speak; roles with fewer are left out.
        window: Characters in a row of x. LEAF has 80, the default.
        stride: Characters from one window to the next. By default windows do not overlap, so that
            a random split does not show test characters in training; LEAF uses 1, which makes four
            million rows.

    Returns:
        The data, with 81 labels.

    Example:
        >>> shakespeare().clients  # doctest: +SKIP
        438
    """
    stride = window if stride is None else stride
    if window < 1 or min_characters <= window or stride < 1:
        raise ValueError(
            f"window and stride must be at least 1 and min_characters more than the window, "
            f"got {window=}, {stride=}, {min_characters=}"
        )
    roles = _roles()
    names = [name for name, codes in roles.items() if len(codes) >= min_characters]
    if not names:
        raise ValueError(
            f"no role has {min_characters} characters; the longest has"
            f" {max(map(len, roles.values()))}"
        )
    windows = [
        np.lib.stride_tricks.sliding_window_view(roles[name], window + 1)[::stride]
        for name in names
    ]
    every = np.concatenate(windows).astype(np.int32)
    counts = [len(rows) for rows in windows]
    return FederatedData.from_rows(
        Rows(every[:, :-1], every[:, -1]), counts, names=names, classes=len(VOCABULARY) + 1
    )


def encode(text: str) -> UInt8[np.ndarray, " characters"]:
    """The codes of a text's characters.

    Args:
        text: Any text.

    Returns:
        The index of each character in `VOCABULARY`; 80 for a character that is not in it.

    Example:
        >>> [VOCABULARY[code] for code in encode("To be")]
        ['T', 'o', ' ', 'b', 'e']
    """
    table = np.full(256, len(VOCABULARY), np.uint8)
    table[np.frombuffer(VOCABULARY.encode("ascii"), np.uint8)] = np.arange(len(VOCABULARY))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return table[np.minimum(points, 255)]


def _roles() -> dict[str, np.ndarray]:
    path = sources.local(_FILE)
    if path is not None:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return {role["client"]: encode(role["text"]) for role in map(json.loads, file)}
    stored = sources.cached("shakespeare", _fetch)
    codes = np.split(stored["codes"], np.cumsum(stored["lengths"])[:-1])
    return dict(zip(stored["names"].tolist(), codes, strict=True))


def _fetch() -> dict[str, np.ndarray]:
    """The speeches of LEAF's roles, put together again from its windows, which advance by one
    character.
    """
    table = sources.hugging_face("shakespeare", _FILE).load_dataset(
        "flwrlabs/shakespeare", split="train"
    )
    speeches = dict(_speeches(zip(table["character_id"], table["x"], table["y"], strict=True)))
    return {
        "names": np.asarray(list(speeches)),
        "lengths": np.asarray([len(speech) for speech in speeches.values()]),
        "codes": np.concatenate([encode(speech) for speech in speeches.values()]),
    }


def _speeches(rows: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    role, speech = "", ""
    parts: list[str] = []
    for next_role, window, character in rows:
        if next_role != role:
            if parts:
                yield role, "".join(parts)
            role, speech, parts = next_role, window, [window]
        if window != speech:
            raise ValueError(
                f"the windows of role {role!r} do not follow each other in the public source; its"
                " format has changed"
            )
        parts.append(character)
        speech = window[1:] + character
    if parts:
        yield role, "".join(parts)

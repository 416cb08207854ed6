"""The site's own key, which its random numbers follow from and no server knows."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from covey.core import atomic_files, keys
from covey.deploy.private_files import make_folder
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile

_WORDS = 2  # of 32 bits, in a key of threefry


def study_key(site: SiteFile, setup: str) -> Key[Array, ""]:
    """The key of a study at a site: another one for other rows, designs or scales.

    A site that was set up anew could get a message again that it has answered, with a table that
    has changed: the same noise on both answers would tell what is new.

    Args:
        site: The site's file, with the permissions of its owner.
        setup: All that the study's answers depend on beside its messages, as text.

    Raises:
        DeclinedError: The file of the site's key is damaged.
    """
    return keys.message_key(secret_of(site), setup.encode())


def secret_of(site: SiteFile) -> Key[Array, ""]:
    """The site's own key, made from this machine's entropy when it is first needed.

    Only the site's owner can read the file, which is whole or not there. The noise of an answer
    follows from this key and from the whole message that is answered (`core.keys.message_key`), so
    that a site that is set back to a backup never sends the same noise with two different messages.

    Args:
        site: The site's file, with the permissions of its owner.

    Raises:
        DeclinedError: The file is damaged.
    """
    path = site.site.state / "secret.key"
    if not path.exists():
        make_folder(path.parent)
        words = np.asarray(jax.random.key_data(keys.secret_key()))
        fresh = path.with_name(f"secret.{os.getpid()}.key")
        atomic_files.write(fresh, f"{words.tobytes().hex()}\n".encode(), private=True)
        try:
            os.link(fresh, path)  # the key of the process that is first is the key of all
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        atomic_files.sync_folder(path.parent)
    try:
        words = np.frombuffer(bytes.fromhex(path.read_text("ascii").strip()), np.uint32)
        if len(words) != _WORDS:
            raise ValueError(f"a key has {_WORDS} words, and this one {len(words)}")
    except ValueError as error:
        raise DeclinedError(
            "disk",
            f"the secret key of {site.name} is damaged, so that nothing may leave; its owner has "
            "to restore it",
            f"{path} is damaged ({error}); put a copy of it back, or remove it: a new one is made",
        ) from None
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")

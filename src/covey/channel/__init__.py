"""What uploads pass through: codecs, and their composition over the parts of an upload."""

from covey.channel.half import half as half
from covey.channel.identity import identity as identity
from covey.channel.parts import by_part as by_part

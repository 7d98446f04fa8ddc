"""How a peer asks another one for its part in work that all share: what it has read and routed of the corpus."""

from typing import Annotated, Literal

from pydantic import Field

from dipaco_swarm.swarm.fields import Message, Size

MAX_TOPIC = 64
MAX_PART_NAME = 64
Topic = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9/-]*$", max_length=MAX_TOPIC)]
PartName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=MAX_PART_NAME)]


class AskPart(Message):
    """Send this part; who offers parts under a topic says in the directory which."""

    kind: Literal["ask-part"] = "ask-part"
    topic: Topic
    name: PartName
    """What it means is for the topic to say."""


class PartFollows(Message):
    """Yes; so many bytes follow."""

    kind: Literal["part"] = "part"
    size: Size

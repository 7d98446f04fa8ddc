"""The transport over hivemind's libp2p daemon.

opening.py       joins a run: a node, a swarm on it, goodbye        settings.py      what this machine chose
starting.py      starts a node and ends it                          node.py          `Transport`: the open node
daemon.py        the process of hivemind's p2pd                     sockets.py       theirs, and what killed peers left

connections.py   to whom we are connected, and over what            incoming.py      streams that others open
pipe.py          bytes to and from the daemon                       stream.py        messages and pieces over a pipe
rate_limit.py    no faster than the machine's owner allows          protobuf.py      messages of the daemon

reachability.py  can others dial us: the question and the answer    visibility.py    what follows from the answers
relay.py         for those whom nobody can dial                     reservations.py  at relays, while we are one of them
outside.py       can others dial us, for the doctor

dht.py           signed records in hivemind's DHT                   leaks.py         what hivemind keeps for ever
bounded_dht.py   what a request of it may cost                      questions.py     its questions, over streams of ours
storage.py       what is kept of it for others                      serializing.py   what is read of it
identity.py      our key, which is our name                         address_book.py  whom we have met
"""

"""The door through which anybody asks a run something, in the words that clients of OpenAI's interface speak.

request --dialect--> Asked --gateway: route, hand over--> Writer: a peer of the path, or this machine --> tokens

dialect    requests and answers as JSON, with their bounds
asked      what is asked, as values
gateway    routes a text, has it written, goes on with another writer when one falls silent
own_paths  the writer that this machine is
words      tokens -> text, until it stops
app        the ASGI application
static/    the page that it shows to browsers
program    `dipaco-swarm serve`
once       `dipaco-swarm generate --run`
"""

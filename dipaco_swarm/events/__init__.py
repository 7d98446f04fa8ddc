"""What programs report: one frozen value an event. People read it as one calm line, programs as values.

    event       Event and Fault, and how a class becomes a `kind`
    training    rounds, tokens and states: what a volunteer trains, commits, catches up with and drops
    joining     what a run asks of a volunteer's machine
    volunteer   the rest of a volunteer's life: joining, waiting, its disk, its company, leaving
    pausing     its pauses, and what they are for
    usage       what its time and its line were used for
    attendance  whether a synchronous run was whole
    operator    the bootstrap node's life: stages, routers, keeping
    going_back  anchors, and what is taken back to them
    pushing     the model on its way to a hub
    watching    who comes and goes, for who looks at a page
    reading     a shard that is read beside training
    words       numbers and lists as people read them
    lines       an event as a line of JSON, and back

Modules, peers and digests are strings here, so that every event is plain values. Who reports calls `Screen.event`; a
floor that has no screen hands the event to its logger instead of a text. The wording is in `line` of each class alone,
and nothing else may read it: a program that wants to know looks at the class and its fields.
"""

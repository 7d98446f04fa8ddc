"""Whole swarms in virtual time: the product's own code on a simulated network. For our tests, and for yours.

    virtual_time.py   an event loop that jumps
    program.py        blocking programs that live in it         pauses.py     how they wait
    network.py        lines, delays, losses, partitions, routers, the dead      directory.py  a DHT with stale reads
    process.py        a program over all its lives: killed, and started again with what was on its disk
    volunteer.py      the real `Volunteer`     training.py   its steps, which take virtual time
    operator.py       the real `Operator`      workshop.py   what it computes, in virtual time
    run.py            what is trained: a plan and its run file
    world.py          all programs of one run       ending.py     Ctrl+C for all, and where every token is then
    faults.py         random faults by a seed     aims.py  what they aim at           stories.py  random whole runs
    ledger.py         where every token is; which versions came from which            watched.py  what feeds it

One seed is one history, byte for byte: a failing seed fails again. Nothing of the protocol is written here.
"""

"""Whole swarms in virtual time: the product's own code on a simulated network. For our tests, and for yours.

    virtual_time.py   an event loop that jumps; blocking programs that live in it     pauses.py   how they wait
    network.py        lines, delays, losses, partitions, routers, the dead      directory.py  a DHT with stale reads
    training.py       steps that take virtual time                                    run.py      the operator's side
    world.py          all peers of one run, started, frozen, killed, started again
    faults.py         random faults by a seed                                         stories.py  random whole runs
    ledger.py         where every token is; which versions came from which            watched.py  what feeds it

One seed is one history, byte for byte: a failing seed fails again. Nothing of the protocol is written here.
"""

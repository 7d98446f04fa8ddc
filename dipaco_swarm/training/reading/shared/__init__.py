"""A corpus that is routed once, by all peers together: what one has routed, the others use.

    portions --slices--> texts --router--> the path of each         once, by whoever comes to it first
                                  |
             shelf <--------------+                  what we have routed, for whoever asks
               |  offers, asked for by name
             inbox --belief--> ledger --> sequences  what others have routed, as far as it stands being looked at again

    slices      the parts in which a portion is routed, and what is said of one: routes of all texts, tokens of some
    shelf       what this peer has routed, on the disk
    offers      how a peer says what it has
    subject     whether a corpus is shared, and with whom
    beside      the process that reads, and its exchange
    exchange    in the program that trains: offers, gives, fetches while the reader is hungry
    inbox       what the reader is given of it
    belief      a part of what others say is done again, and whoever says something else is not believed
    ledger      which slices were used, in which order, and which of their texts are ours: so that the same sequences
                come again, without anybody else
    supply      the texts of our path, one slice after the other: of others where there are any, else routed here

A portion is called by its place in the run's order, which all peers share; each begins at a place of its own, and
comes in the end to what the next one has routed.
"""

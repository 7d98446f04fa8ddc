"""A shard that nobody reads whole before training: a process beside it reads as far as training has come, and a bit on.

    portions --an order of this peer's own--> documents --pack--> sequences --blocks on disk--> batches

    blocks      how the sequences are divided into blocks, and shuffled within them
    places      where in the corpus a block begins: from there it can be made again
    cheap       documents -> token ids of our path; of the others only the first tokens are looked at
    making      blocks, one after the other, from any place
    store       the folder of a stream: blocks, places, and how much of the disk they may take
    reader      the process
    stream      what training sees of it

What comes out is a pure function of the corpus, the stage, the path and the peer: neither of how fast anybody is, nor
of what was interrupted, nor of what the disk had room for.
"""

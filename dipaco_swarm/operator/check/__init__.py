"""`dipaco-bootstrap check`: what a run file means, before anything is opened.

sizes    parameters, memory, disk, bytes     pace     how long a round takes
sample   some documents, read and routed     report   all of it, for people and for programs
"""

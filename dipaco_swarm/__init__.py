"""dipaco-swarm: volunteers train one large modular language model together (DiPaCo, arXiv 2403.10616).

Start reading at `outer_round.run_outer_round`. The words of the project are in `algorithm/__init__.py`, the protocol
in `swarm/__init__.py`.
"""

"""A visit to a run: status, evaluate, generate, export.

visits.py    what a visitor can ask for        sources.py    the swarm, or a home folder
exporting.py   the model out, with its card   publishing.py   to the Hugging Face hub
harness.py     lm-evaluation-harness on a run
trained_run.py   what either of them gives: a run that can be used
"""

"""When an outer round of a module is due, and how long it waits for whoever is missing: one file per pacing.

pacing.py         what a pacing is, what it sees, and how one is found by its name
synchronous.py    synchronous    everybody takes the same steps and waits for everybody
paced.py          paced          due when the group's tokens reach the target
"""

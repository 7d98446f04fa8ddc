"""How the outer gradients of a module group become one: one file per rule.

rule.py     what a rule is, and how one is found by its name
mean.py     mean     the weighted mean
radial.py   radial   mean length times mean direction
robust.py   robust   the weighted mean of those that most of the others back
"""

"""How hypothesis searches here.

The same inputs in every run: a suite that is green stays green until somebody changes the code. To look for new ones:
`pytest --hypothesis-profile=search`.
"""

from hypothesis import HealthCheck, settings

# a busy machine is slow to draw inputs, and that says nothing about them
settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=5000)
settings.load_profile("suite")

"""Run a bootstrap node from a checkout:  python bootstrap serve RUN.toml

A door, not a room: the code is in dipaco_swarm/. Installed users type `dipaco-bootstrap`.
"""

import sys
from pathlib import Path

# `python bootstrap` puts this folder on the path, not the checkout that it stands in
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dipaco_swarm.cli.bootstrap import main

if __name__ == "__main__":  # child processes import this file too
    main()

"""Run a peer from a checkout:  python peer.py --run ADDRESS --path 37

A door, not a room: the code is in dipaco_swarm/. Installed users type `dipaco-peer`.
"""

from dipaco_swarm.cli.peer import main

if __name__ == "__main__":  # child processes import this file too
    main()

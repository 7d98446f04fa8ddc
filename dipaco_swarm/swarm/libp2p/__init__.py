"""The transport over hivemind's libp2p daemon."""

"""What a person sees: frozen views, how each is drawn, and the screens that show them.

    views       PeerView: one volunteer. SwarmStatus: the whole run. BootstrapView: the operator. Evaluation: perplexity
    drawing     pure: a view in, something that rich can print out
    shapes      what drawings are made of: a frame, tables, bars
    screens     live: redrawn in place, for a terminal. plain: a line per event, for a log. none: silence

Views hold plain numbers and words, so that anything can be shown and nothing has to be faked in a test. No swarm here.
"""

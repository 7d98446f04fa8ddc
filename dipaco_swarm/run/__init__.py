"""What a run agreed on: the operator's run file, the signed manifest made from it, and the address that names it.

    RUN.toml --file.py--> config.RunConfig --(bootstrap node: tokenizer, stages)--> manifest.Manifest
                                                                    --signature.py--> bytes in the swarm

    config      the sections of the run file            file        reads RUN.toml
    manifest    stages that have begun; the manifest    signature   signs a manifest, checks a signed one
    address     the one string a volunteer is given     values      how all of these are checked
    table       what a path table must be               problems    what is wrong with one of them, for a person
    stage       [[stages]] of the run file              checking    all that is wrong with a run file
    growth      what may change in a run that has begun lengths     inner steps of a round, as that changes

Frozen values, checked when made; no torch, no network.
"""

"""The paper, as pure functions: values in, values out. No network, no files, no clock.

Words, one for each thing:

    path            one choice of module per level; what one peer trains
    level           a position in the path where a choice is made
    module          a level's share of the parameters (torch's `nn.Module` is called *network* or *model* here)
    path-specific   a module that only one path passes through; it takes outer steps but never travels for averaging
    module group    the peers whose paths share a module
    outer gradient  theta(t-1) - theta(t) of one module, after inner training
    inner optimizer AdamW on a shard;  outer optimizer: Nesterov between rounds
    router          document prefix -> path;  shard: the documents of one path
    stage           a part of a run with one path table and one router
    version         how many outer steps made a module's state
    peer, holder, keeper, bootstrap node, run, manifest: see `swarm/__init__.py` and `run/__init__.py`

Symbols:

    theta   a module's parameters, one flat fp32 vector       v   its outer momentum, same shape
    Delta   outer gradient                                    w   weight of a contribution
    n_eff   effective number of paths, (sum w)^2 / sum w^2

A module's state is *one flat fp32 vector* for the parameters and one for the momentum: the outer step is elementwise,
so nothing but `training.modules` needs to know names or shapes.
"""

r"""One machine: torch and transformers, never the network.

A path is one ordinary transformers causal language model. Its parameters, by level, are DiPaCo's modules:

    level 0   embedding, blocks 0-1        -> one flat fp32 vector  \
    level 1   blocks 2-3                   -> one flat fp32 vector   }  `modules.PathModel`, one network
    level 2   blocks 4-5, final norm, head -> one flat fp32 vector  /

Loading other vectors into the same network turns it into another path, so a machine that reads many paths (evaluation,
scoring, generation) builds one network. Everything above this floor sees vectors and tokens:

    modules      flat vectors <-> the parameters of a network
    documents, tokenizer, features, shards: the documents of one path, as batches
    inner        inner steps: AdamW on a shard
    checkpoint   what a peer needs to go on after a restart
    evaluation   log-likelihoods of held-out sequences
    inference    text from one path
    export       a path as an ordinary transformers folder

Throughout: tokens are int64 of shape (sequences, sequence_length); losses and log-likelihoods are in nats.
"""

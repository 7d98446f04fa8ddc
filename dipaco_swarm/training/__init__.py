r"""One machine: torch and transformers, never the network.

A path is one ordinary transformers causal language model. Its parameters, by level, are DiPaCo's modules:

    level 0   embedding, blocks 0-1        -> one flat fp32 vector  \
    level 1   blocks 2-3                   -> one flat fp32 vector   }  `modules.PathModel`, one network
    level 2   blocks 4-5, final norm, head -> one flat fp32 vector  /

Loading other vectors into the same network turns it into another path, so a machine that reads many paths (evaluation,
scoring, generation) builds one network. Everything above this floor sees vectors and tokens:

    modules         flat vectors <-> the parameters of a network
    pretrained      a checkpoint of the world, as the beginning of a run

    documents       the documents of a run               tokenizer   text -> token ids, as the run cuts it
    encoding        token ids, cached on disk            features    prefix -> what the router reads
    routed          manifest -> tokenizer, router, features
    pieces          documents -> pieces of at most T tokens; the pieces that nobody trains on
    packing         pieces of one path -> sequences of T tokens
    shards          the sequences of one path, on disk   reading     the same, read beside training

    inner           inner steps: AdamW on a shard        checkpoint  what a peer needs to go on after a restart
    bank            module states as files               early       the best snapshot of a path

    evaluation      perplexity by path and domain        scoring     how well a path likes the routing sample
    window_router   a path for each window of W tokens   inference   text from a path
    export          a path, or the whole model, as a folder       card        what its README.md says
    dipaco_model    the loader of a whole model, which lies in its folder and imports nothing of this package

Throughout: tokens are int64 of shape (sequences, sequence_length); losses and log-likelihoods are in nats.
"""

"""The other peers: the protocol between them, and the theory behind it.

    interface.py    all that a program may ask of the others (`Swarm`)
    networked.py    `Swarm`, over any transport             calls.py        from a program's thread into the loop
    border.py       where errors in what others send end     bans.py         who is out for good, by proof
    directory.py    who is there                            announcing.py   what we say of ourselves
    witnesses.py    who is there by the word of those we know, where the directory shows nobody
    groups.py       where we stand in each module group
    transport.py    what the protocol needs of a network    timing.py       how long things take, five base numbers
    local.py        the transport within one process        libp2p/         the transport over hivemind's daemon
    traffic.py      bytes by purpose, the speed of our line
    sharing.py      work that is done once for everybody: who has which part of it, and asking for that
    vouching.py     which claims are believed               had.py, circle.py   what we have had; whom we know
    round/          one outer round: member, leader, exchange of pieces, arithmetic, codec, failure detector
    states/         module states, blobs and the manifest: kept, served, fetched
    wire.py         messages, made of fields.py             framing.py      their bytes, checked at the border
    records.py      what stands in the directory
    tasks.py, threads.py   background tasks; work beside the event loop

Peers
    A peer's name is its libp2p peer id. It contains the peer's Ed25519 key, libp2p proves it for every stream, and we
    check record signatures by it. RUN below is the fingerprint of the operator's key.

Records (hivemind's Kademlia DHT; a dictionary a key; subkey = name of the signer)
    RUN/group/STAGE/MODULE   an announcement: path, version, digest, work, tokens, pace; or a goodbye. Lives 45 s,
                             repeated every 5 to 15 s: the less often, the longer it says the same
    RUN/manifest             revision and digest of the manifest; counts only if that blob is signed by the operator
    RUN/topic/TOPIC          a statement of up to 512 bytes: where scores of the routing sample or a snapshot are, or
                             which parts of the corpus a peer has routed (`sharing.py`), and its addresses
    The four nodes nearest to a key have its records. Who has asked them once remembers them, and from then on reads
    from one of them; a large group the less often, the more there is to read, a stranger's record an eighth of it.
    A value is msgpack [payload, signature]; the signature covers key, expiration and payload. Every node refuses what
    is unsigned, longer than 2 KiB, without a subkey, or meant to live longer than 2.5 minutes.

Streams (one libp2p stream each; messages are a 4-byte length and a msgpack map, at most 1 MiB, strictly typed)
    dipaco/1/RUN/round      Join -> Alive.. Roster, Reassign.., Commit | Abort | Refuse      a member and its leader
                            Where -> Here            are you there, at which version, with whom do you wait
                            AskOutcome -> OutcomeIs  did you commit this round
                            AskSeals -> SealsAre     what have its reducers signed to you; Proof: ban this name
    dipaco/1/RUN/exchange   Exchange, then pieces both ways: contributions in, averages out    a member and a reducer
    dipaco/1/RUN/store      AskState -> StateIs, then AskPiece -> its bytes, as often as wanted;
                            AskAverages -> AveragesAre: which blobs lead from a state that we have to the one we want;
                            AskBlob -> BlobFollows and bytes; AskManifest -> ManifestIs; otherwise NotHere.
                            AskHad -> HadAre: have you had these states; asked before a claim is believed
                            AskMembers -> MembersAre: who trains this module; asked where the directory does not show it
                            Holding: I leave, and have this state; no answer
                            AskPart -> PartFollows and bytes: what a peer has routed of the corpus
    dipaco/1/hello          Hello -> Welcome         how do you see me, can you dial me    a peer and a bootstrap node
    dipaco/1/where          AskPlaces -> PlacesAre   where is a node of the directory      two peers

Behind a router
    A peer asks the bootstrap nodes at its start, and every minute, whether they can dial it where they see it come
    from. Who cannot be dialled keeps a relay reservation there (libp2p's circuit v2), announces a /p2p-circuit address
    and that it does not reduce; streams to it run through the bootstrap node and are otherwise as any. It leads only
    while no live member can be dialled, or all who can are lost, and reduces only in rounds without one.

A round of one module, from version v to v + 1
    1. Everybody ranks the announced, dialable members (all, where there is none) by hash(stage, module, v, name). The
       first one leads, the next takes over when it is lost, refuses or aborts twice. Members that had not heard of
       each other may choose differently; a leader that learns from the missing of one before it sends its members
       there.
    2. The leader closes the roster when every announced member that is alive has joined or gone ahead, or when the
       median of its members' patience is over, or a twentieth of that where only strangers are missing. Where somebody
       has a state with more work behind it, all are sent to fetch that first.
    3. The roster follows from what the members said (order, clipping, pieces), and every member checks that it does.
    4. Each piece of the vector has one reducer; who has a slow line gets few or none. A contribution counts for a
       piece when it has arrived completely, unpacks to the right size (which is known before), is finite, and is
       within the length its sender claimed. The reducer sums in roster order, encodes the mean once, and sends these
       bytes to everybody; it uses them itself. Paths weigh as their shards do, less if they have trained on fewer
       tokens than a full round has.
    5. Who is gone (stream closed, silent for 8 to 30 s) or slow (awaited, as one of few, for 3 times what the others
       needed, a quarter of what training took, and 5 s at least) is left out: the leader reassigns its pieces, and
       they are made anew in a new generation. Who was too slow twice in a row is not waited for in the next rounds,
       for a minute at first, and counts where it is in time. A synchronous round (`ModuleGroup.whole`) leaves nobody
       out. Who is silent is asked (Where), and waited for as long as the patience lasts, an hour at least. Gone is who
       says goodbye, and who cannot be dialled for 30 s. Who goes in the middle ends the round; it is made again, with
       the same gradients.
    6. Reducers sign what they make. Whoever holds all averages and their seals tells the digest. The leader commits
       when all digests are equal and at least half of the roster is there. Where they differ, the seals show who is to
       blame (`round/seals.py`): a reducer that signed two averages is banned by all, by proof, and the round made
       again at once without it; a member that does not show what it says is left out, and the others commit.
    7. Members check some pieces of the average afterwards (`round/auditing.py`): each contribution is signed, a reducer
       keeps them until 20 s after the round and shows them to who asks, and who makes a piece anew and finds it wrong
       bans its reducer and shows the others why.
    8. A leader lost in between: members ask each other. If one committed, so do the others, for they hold the same
       bytes. Who hears the leader still says so, and stays; while such ones could be half of the roster, the others
       ask again.
    Only Commit replaces error-feedback residuals; the outer step is taken above this floor.

Promises
    - Members that commit a round hold the same average, bit for bit, with every codec. What the average is depends on
      who is in it and not on times of arrival.
    - A round ends with `Agreed` or `NotAgreed`. The latter changed nothing here; the gradient is never written to.
    - No wait is without bound: for a stranger's message 8 s, for an answer 4 to 20 s, as recent answers took, for
      the next bytes of something begun 30 s, for a round in which nothing moves 15 s, for a leader that does not end
      one 23 s or as long as training took, for members that do not come the median patience.
    - One peer cannot make another keep much: a contribution a piece and member, 1024 members a round, 1024 gatherings,
      4096 streams, 64 of them of one peer, records of 2 KiB, 1536 under a key and 32,768 in all; memory for states and
      blobs is taken as bytes come in; of a module two states are served, and an older one while somebody reads it; and
      the averages of six rounds, in no more bytes than a state.
    - What is fetched has the digest that it was asked by, whoever sent it. Nothing received is executed.
    - Whoever has a state and is at most six versions behind follows the averages: the reducers' own bytes, as members
      decoded them, and the same outer steps. They are asked for first, and not taken if the state is fewer bytes.
      A state that they make has the digest that was asked for; if not, who named them is not asked for it again.
    - A claim alone moves nobody. A state is taken when the operator's node has had it, or a member that we know; known
      is who has contributed to a state that we have taken (`algorithm/evidence.py`). Strangers' words count only where
      nobody is known, in a new run or for a newcomer while no operator's node answers: more than half of them decide.
      Once the operator has gone back with a module, only states of that generation are believed; the signed manifest
      says which it is (`algorithm/generations.py`).
    - A state's digest is over version, length and the digests of its 4 MiB pieces, and StateIs carries these; so each
      piece comes from any holder and is checked alone. Of those who announce the digest the operator's nodes are asked
      first, then names that we know, keepers before members that train, else in random order, up to four at once. Who
      lies, leaves, sends nothing for 8 to 30 s, or keeps the others waiting for 3 times the usual, 8 s at least, loses
      its pieces to them, and who is far slower than usual its place to one that waits; what has arrived stays.

Assumptions
    Clocks within 30 s for records. A group's live members can reach its leader and reducers, or are left out. SHA-256
    and Ed25519 hold. The same torch arithmetic everywhere: single multiplications and additions in fp32.

Against whom
    Strangers who send malformed, oversized, non-finite or too long contributions: left out, named in the log. Whatever
    else they send: every number has a range (`fields.py`), and an error in what one peer sent costs that peer its
    stream (`border.py`), whose lines in the log are few. Averages and states that are not numbers: nobody takes them.
    Who has never contributed: its tokens do not make a round due, its call not before nine tenths of one are trained,
    and it is waited for in one of 80 versions at most; it leads only where nobody known can, and is asked where it is
    for a second, and once. A fast line: no reducer has more than twice an equal part. Members that send nothing,
    reducers that do not answer, leaders that stall, or send us to states that nobody sends: after two rounds, as a
    rule, nobody waits for them and others lead, each time for twice as long. A scaled contribution is clipped to
    `norm_clip` times the median length. What the others of a group of three or more point away from, and noise, does
    not count (`algorithm/averaging/robust.py`). Claims of tokens: a replica counts for at most four times the median of
    its path. Different averages to different members: two signatures that prove it, and a ban. Wrong averages: found by
    who makes a piece anew, with a proof for whoever does the same, and a ban. Who says that it holds another average,
    or asks in the middle of a round how it ended: the others go on. Versions that nobody else has had: not asked for.
    Wrong states and blobs: another holder is asked. Records in others' names: refused by every node. Peers that
    vanish, freeze or crawl at any moment: points 5 and 8. Floods of names: whom we know keeps its place.

What we do not claim
    - Truth of a contribution. What points a little with the others, and for the rest anywhere, moves the mean by its
      path's weight; many names are many members (there is no defence against a crowd but the operator's). Of two nobody
      is left out, whatever it sends. Tokens are claimed, not proven: whoever has contributed once can make rounds come
      early by what it claims.
    - A member's word. Who has contributed to one round is known from then on, and its claims of later states are
      believed. Majorities were tried: in runs without a fault slow members then lost what they had trained, for
      whoever is fast makes versions alone.
    - Length is held per reducer: against R reducers together a member can send sqrt(R) times what it claimed.
    - An honest average in every round. Of twenty-five pieces one is made anew: a reducer may bend some before it is
      found, and that version stays. What it could have contributed itself it may choose after it has heard the others.
      A reducer may say that some of them did not come, and the leader may leave members out.
    - Who of two is to blame that complain of each other alone: both are noted. A member can so have others demoted, at
      most half of a roster at a time; these still contribute what is in time.
    - A leader's word. It may leave members out, or send two halves of a group two rosters: they make two versions, and
      whoever is behind fetches the one with more work. A member may say that it committed what the leader aborted.
    - One history. Two sides of a partition may both commit v + 1, also when a leader commits while a member that lost
      it asks the others. The digests in the announcements show it, and `algorithm/plan.py` heals it: the state with
      more work behind it (tokens, in its whole history) is fetched.
    - A readable DHT. 1,536 names under a key leave no room there for more; what stands there is only renewed.
      Members that were heard stay known until their record expires.
    - An end to a mistake of ours that somebody finds: the round ends, and may each time that he comes back.
    - Privacy. Traffic is encrypted between daemons; every member of a module group sees the others' outer gradients.
"""

"""The proof: a seeded workload on a real ring under chaos, and whether the tables, the feed and the accounts say what the ring says.

    generate ──► operations ──► a three-node ring ──► real shippers ──► bucket ──► plan, ingest, archive ──► check
                 schedule (stops, kills, repairs, flushes, batches) ─────┘                                   ▲
                                                        the ring's answer at ALL, at quiet points ───────────┘

`python -m proof.ring` runs it (docs/proof.md). What a run did can be kept and be replayed without a ring, and a replay can break one
rule of the product at a time (`sabotage`): so it is known that the proof can fail. The product knows nothing of any of this.
"""

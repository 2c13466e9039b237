"""The proof: a seeded workload on a real cluster under chaos; tables, events and accounts must equal the
cluster's answers.

    generate ──► operations ──► a cluster of three ──► real shippers ──► bucket ──► plan, ingest, archive ──► check
                 schedule (stops, kills, repairs, flushes, batches) ─────┘                                    ▲
                                                     the cluster's answer at ALL, at quiet points ────────────┘

`python -m proof.ring` runs it (docs/proof.md). A run can be recorded and replayed without a cluster, and a
replay can break one rule of the product at a time (`sabotage`), which shows that the proof can fail. The
product knows nothing about it.
"""

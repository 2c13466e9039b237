"""Kills the shipper repeatedly next to a writing node, and checks that nothing is lost, duplicated or deleted
early.

python -m proof.kill_shipper --seed 1 --kills 200 [--sabotage RULE]

node        writes a recorded log to cdc_raw as Cassandra does, crashes and restarts
shipper     the real agent as a process, with a faulty store, killed at named points
sabotage    ways to break the shipper that the check must detect
check       invariants after every kill and at the end
run         combines them
"""

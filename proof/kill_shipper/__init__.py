"""A shipper that is killed over and over beside a node that writes, and a check that nothing was lost, doubled or deleted early.

python -m proof.kill_shipper --seed 1 --kills 200 [--sabotage RULE]

node        writes a recorded log into cdc_raw as Cassandra does, crashes and comes back
shipper     the real agent as a process of its own, over a store with faults, killed at named points
sabotage    ways to break the shipper that must be noticed
check       what has to hold after every kill, and at the end
run         puts them together
"""

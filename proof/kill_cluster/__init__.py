"""Executors, machines and drivers of a standalone cluster, killed in the middle of batches. `make prove NAME=kill
MASTER=standalone`.

run     batches, kills, and the comparison
"""

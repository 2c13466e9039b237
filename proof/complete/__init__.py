"""Proof that tables and topics are complete up to the time that the product says (`make prove NAME=complete`).

__main__   the command line
run        the ring, its shippers, the session, and what is done to the nodes
truth      acknowledged writes, and what each published time is held against
sabotage   rules under which the product says too much, or nothing
"""

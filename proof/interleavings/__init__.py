"""Drivers beside each other: schedules of real drivers over one store, one broker, one warehouse and one clock.

world       threads, time and randomness of the product, as a schedule says
schedule    what a schedule does differently, at which step; random ones, all small ones, and shrinking
jobs        what stands in for Spark: small batches, and their events
drivers     the drivers, by name
scenario    which drivers run, on what, and what has to hold in the end
sabotage    the fences, one of which is left out
run         many schedules, their figures, and the stories of those that fail
"""

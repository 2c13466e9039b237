"""The daemon of Spark's Python workers under a sabotage: breaks the rule named in the environment, then runs
pyspark's daemon.
"""

from __future__ import annotations

import os

from pyspark.daemon import manager

from proof.ring import sabotage

if __name__ == "__main__":
    sabotage.apply(os.environ[sabotage.VARIABLE])
    manager()

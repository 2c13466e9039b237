"""What Spark's Python workers start with under a sabotage: break the rule that the environment names, then be pyspark's own daemon."""

from __future__ import annotations

import os

from pyspark.daemon import manager

from proof.ring import sabotage

if __name__ == "__main__":
    sabotage.apply(os.environ[sabotage.VARIABLE])
    manager()

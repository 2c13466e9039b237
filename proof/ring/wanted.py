"""The options of a run of the proof, and the command that repeats it."""

from __future__ import annotations

from dataclasses import dataclass

from proof.harness.cassandra import VERSIONS
from proof.ring.topology import ONE_DATACENTER, Topology


@dataclass(frozen=True)
class Wanted:
    """What to run: `prefix` operations (None: all) of those that the seed gives, of some kinds or all, with
    chaos or without.
    """

    seed: int
    ops: int
    version: str = VERSIONS[0]
    prefix: int | None = None
    without: frozenset[str] = frozenset()
    chaos: bool = True
    tiny: bool = False
    topology: Topology = ONE_DATACENTER
    upgrade_to: str | None = None
    """The version that each node gets, one after the other, in the middle of the run."""
    store: str = "folder"
    """Where bucket, state and tables are, one of `in_s3.STORES`."""

    @property
    def has_epochs(self) -> bool:
        """Whether the ring numbers its schema changes when the run begins."""
        return self.version >= "6"

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        parts = [f"make ring SEED={self.seed} OPS={self.ops}"]
        parts += [] if self.version == VERSIONS[0] else [f"VERSION={self.version}"]
        if self.topology.datacenters > 1:
            parts += [f"DATACENTERS={self.topology.datacenters}", f"SHIPPING={self.topology.shipping}"]
        parts += [] if self.store == "folder" else [f"STORE={self.store}"]
        arguments = [] if self.prefix is None else [f"--prefix {self.prefix}"]
        arguments += [f"--without '{','.join(sorted(self.without))}'"] if self.without else []
        arguments += [] if self.chaos else ["--no-chaos"]
        arguments += ["--tiny"] if self.tiny else []
        arguments += [f"--upgrade-to {self.upgrade_to}"] if self.upgrade_to else []
        return " ".join([*parts, *([f'ARGS="{" ".join(arguments)}"'] if arguments else [])])

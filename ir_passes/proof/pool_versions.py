"""Versions of pools: after a write only the new version may be read."""

from dataclasses import dataclass, field

from ir_passes.proof.numbering import Leaf, Version


@dataclass
class PoolVersions:
    """A chain of versions for each pool, and for each part such as one layer.

    Attributes:
        leaf_of: version -> its pool's `Leaf`.
        consumed: versions with a successor.
        parent: version of an unwritten part -> version of its pool.
        origin: version of any part -> version of its pool.
    """

    leaf_of: dict[int, Leaf] = field(default_factory=dict)
    consumed: set[int] = field(default_factory=set)
    parent: dict[int, Version] = field(default_factory=dict)
    origin: dict[int, Version] = field(default_factory=dict)
    last: int = 0

    def first(self, leaf: Leaf) -> Version:
        self.last += 1
        version = Version(self.last)
        self.leaf_of[version] = leaf
        return version

    def succeed(self, version: Version | None) -> Version | None:
        if version is None:
            return None
        self.consumed.add(version)
        successor = self.first(self.leaf_of[version])
        if version in self.origin:
            self.origin[successor] = self.origin[version]
        return successor

    def part_of(self, version: Version | None) -> Version | None:
        """Return the first version of a part of a pool."""
        if version is None:
            return None
        part = self.first(self.leaf_of[version])
        self.parent[part] = self.origin[part] = version
        return part

    def put_together(self, version: Version | None) -> Version | None:
        if version is None or version not in self.origin:
            return version
        pool = self.origin[version]
        return pool if version in self.parent else self.succeed(pool)

    def stale(self, version: int | None) -> bool:
        """Whether the pool, or a part's pool, has a later version."""
        while version is not None:
            if version in self.consumed:
                return True
            version = self.parent.get(version)
        return False

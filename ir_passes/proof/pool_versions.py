"""The versions of a step's pools: every write makes the next one, and no earlier one may be read any more."""

from dataclasses import dataclass, field

from ir_passes.proof.numbering import Leaf, Version


@dataclass
class PoolVersions:
    """The versions of pools: numbers, each in the chain of one pool or of a part of it, such as one layer.

    Attributes:
        leaf_of: version -> index of the pool among the step's flattened inputs.
        consumed: versions that have a successor.
        parent: version of an untouched part -> version of what it is a part of.
        origin: the same for later versions of the part too.
        last: the last version.
    """

    leaf_of: dict[int, Leaf] = field(default_factory=dict)
    consumed: set[int] = field(default_factory=set)
    parent: dict[int, Version] = field(default_factory=dict)
    origin: dict[int, Version] = field(default_factory=dict)
    last: int = 0

    def first(self, leaf: Leaf) -> Version:
        """Return the first version of a pool."""
        self.last += 1
        version = Version(self.last)
        self.leaf_of[version] = leaf
        return version

    def succeed(self, version: Version | None) -> Version | None:
        """Return the version after a write; the one before may no longer be read."""
        if version is None:
            return None
        self.consumed.add(version)
        later = self.first(self.leaf_of[version])
        if version in self.origin:
            self.origin[later] = self.origin[version]
        return later

    def part_of(self, version: Version | None) -> Version | None:
        """Return the version of a part of a pool, which has a chain of its own until it is put back."""
        if version is None:
            return None
        part = self.first(self.leaf_of[version])
        self.parent[part] = self.origin[part] = version
        return part

    def put_together(self, version: Version | None) -> Version | None:
        """Return the version of a pool whose parts are put together again."""
        if version is None or version not in self.origin:
            return version
        whole = self.origin[version]
        return whole if version in self.parent else self.succeed(whole)

    def stale(self, version: int | None) -> bool:
        """Whether a pool, or what a part was taken from, has been written to since."""
        while version is not None:
            if version in self.consumed:
                return True
            version = self.parent.get(version)
        return False

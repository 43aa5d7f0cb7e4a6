"""By what more findings than are listed are known again: counted without their text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

BUCKETS = 1024
"""Parts among which identities are counted where not all findings are kept."""
_HASH_BYTES = 6


@dataclass(slots=True)
class Identities:
    """Identities without their text: how many fall in each bucket of their hash, and the sums of the hashes there.

    Attributes:
        counts: by bucket, of shape [BUCKETS].
        sums: by bucket, modulo 2**48, so that every reader of JSON keeps them.
    """

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    sums: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, identity: str) -> None:
        """Count an identity."""
        digest = hashlib.blake2b(identity.encode(errors="backslashreplace"), digest_size=_HASH_BYTES).digest()
        value = int.from_bytes(digest, "little")
        bucket = value % BUCKETS
        self.counts[bucket] += 1
        self.sums[bucket] = (self.sums[bucket] + value) % 2 ** (8 * _HASH_BYTES)

    def new_since(self, known: Identities) -> int:
        """How many of these aren't among those known, at least; 0 only if no bucket has more, or as many others."""
        new = 0
        for count, total, count_known, total_known in zip(
            self.counts, self.sums, known.counts, known.sums, strict=True
        ):
            new += max(0, count - count_known) or int(count == count_known and total != total_known)
        return new

    @classmethod
    def of(cls, identities: Iterable[str]) -> Identities:
        """Those of listed findings."""
        made = cls()
        for identity in identities:
            made.add(identity)
        return made

"""Names of journal segments, which tell a reader whose answers a segment may hold without opening it."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

#: Number of shards into which fingerprints are divided; a name holds a set of them, in 64 hexadecimal digits.
SHARDS = 256
_NAME = re.compile(r"[0-9a-f]{8}-(?P<shards>[0-9a-f]{64})-(?P<created>[0-9a-f]{8})-[0-9a-f]{32}(\.\d+)?\.jsonl")
_PART = re.compile(r"(?P<segment>.*-[0-9a-f]{32})\.\d+\.jsonl", re.DOTALL)


def shard_of(fingerprint: str) -> int:
    """Returns the shard of a fingerprint, from 0 to 255: its first two digits.

    A runner that processes keys in their order thus sends batches of few shards, and no other worker's segment
    has one of them.
    """
    try:
        shard = int(fingerprint[:2], 16)
    except ValueError:
        shard = -1
    if shard >= 0:  # "-1" is a number, too
        return shard
    # Not one of `spec.model.fingerprint`.
    return zlib.crc32(fingerprint.encode("utf-8", "surrogatepass")) % SHARDS


def shard_set(fingerprints: Iterable[str]) -> int:
    """Returns the shards of some fingerprints as the bits of an integer."""
    found = 0
    for shard in {shard_of(fingerprint) for fingerprint in fingerprints}:
        found |= 1 << shard
    return found


def all_shards() -> int:
    """Returns all shards as the bits of an integer."""
    return (1 << SHARDS) - 1


def half_of(fingerprint: str) -> str:
    """Returns the part of a fingerprint by which it is looked up: its first half, which names a conversation.

    Fingerprints of single prompts differ in it, too.
    """
    return fingerprint[:32] if len(fingerprint) == 64 else fingerprint


def job_prefix(job: str) -> str:
    """Returns the first characters of the names of a job's segments."""
    return f"{hashlib.sha256(job.encode()).hexdigest()[:8]}-"


def part_uri(segment: str, number: int) -> str:
    """Returns the address of a part of a segment."""
    return f"{segment.removesuffix('.jsonl')}.{number}.jsonl"


def segment_of(uri: str) -> str:
    """Returns the address of the segment that a part, or the segment itself, belongs to."""
    part = _PART.fullmatch(uri)
    return uri if part is None else f"{part['segment']}.jsonl"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Contents of the name of a segment, or of a part of one.

    Attributes:
        shards: Shards of its answers, as bits.
        created_at: Unix time, in whole seconds of the clock of the worker.
    """

    shards: int
    created_at: int

    @classmethod
    def parse(cls, uri: str) -> Self | None:
        """Reads the name of a segment from its address; `None` for another name."""
        found = _NAME.fullmatch(uri.rpartition("/")[2])
        return None if found is None else cls(int(found["shards"], 16), int(found["created"], 16))

    def text(self, job: str, unique: str) -> str:
        """Returns the name.

        Args:
            job: Name of the job.
            unique: 32 hexadecimal digits.
        """
        return f"{job_prefix(job)}{self.shards:064x}-{self.created_at:08x}-{unique}.jsonl"

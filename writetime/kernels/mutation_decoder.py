"""Decodes frames of a segment to the Arrow tables of `mutation_columns`, with the readable or the compiled
engine.

Both engines return equal chunks and batches. The compiled one (`mutation_buffers`) is used if numba is
installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import Engine, Frame, Scan, uses_kernel
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.model import Schema
from writetime.errors import WritetimeError
from writetime.kernels.mutation_columns import CHUNK_BYTES, Decoded, Dictionaries, Failure, chunks, flatten, outside


def decode(
    image: bytes, frames: Sequence[Frame], schema: Schema, *, version: int, engine: Engine = "auto", chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Decoded]:
    """Decode frames at their offsets in `image`, in chunks of at most `chunk_bytes` of bodies.

    `version` is that of the segment's descriptor. Frames that cannot be decoded are in `failures`, with the
    error of `decode_mutation`. Raises CorruptFrame if a frame is outside of `image`.
    """
    if uses_kernel(engine):
        from writetime.kernels import mutation_buffers

        yield from mutation_buffers.decode(image, mutation_buffers.places(frames), schema, version=version, chunk_bytes=chunk_bytes)
        return
    for frame in frames:
        if not 0 <= frame.body_offset <= frame.body_offset + frame.body_length <= len(image):
            raise outside(frame.position, len(image))
    dictionaries = Dictionaries.of(schema)
    for first, last in chunks([frame.body_length for frame in frames], chunk_bytes):
        yield _decode_chunk(image, frames[first:last], schema, version, dictionaries)


def decode_segment(scanned: Scan, schema: Schema, *, engine: Engine = "auto", chunk_bytes: int = CHUNK_BYTES) -> Iterator[Decoded]:
    """Decode all frames of a segment, as `decode`."""
    version = scanned.descriptor.version
    return decode(scanned.image, scanned.frames, schema, version=version, engine=engine, chunk_bytes=chunk_bytes)


def _decode_chunk(image: bytes, frames: Sequence[Frame], schema: Schema, version: int, dictionaries: Dictionaries) -> Decoded:
    found: list[tuple[int, Mutation]] = []
    failures = []
    for frame in frames:
        try:
            body = image[frame.body_offset : frame.body_offset + frame.body_length]
            found.append((frame.position, decode_mutation(body, schema, version=version)))
        except WritetimeError as error:
            failures.append(Failure(frame, error.with_traceback(None)))
    return flatten(found, dictionaries, failures)

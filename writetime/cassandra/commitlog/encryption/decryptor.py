"""Encrypted sections (Cassandra 3.0-5.0, db/commitlog/EncryptedSegment, security/EncryptionUtils).

    u32   length of the ciphertext
    u32   length of the plaintext without padding
    ...   ciphertext: AES/CBC with PKCS#7 padding
          inside: u32 length, then an LZ4 block as `LZ4Compressor` writes it

A section contains any number of blocks; frames can cross them. Each block is decrypted separately with the
initial vector of the segment's header. The header also has the key's alias; the key is in the operator's
keystore.

The cipher does not authenticate: a block is valid if its padding and all three lengths are correct. If no
block of a segment is valid, the key is wrong. This module does not know sections. Errors never contain keys.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from writetime.cassandra.commitlog import codecs
from writetime.cassandra.commitlog.descriptor import Descriptor
from writetime.errors import ConfigError, CorruptDescriptor, CorruptSection, UnsupportedSegment

if TYPE_CHECKING:
    from writetime.cassandra.commitlog.encryption.keystore import Keystore

AES_BLOCK: Final = 16
_CIPHERS: Final = ("AES/CBC/PKCS5PADDING", "AES/CBC/PKCS7PADDING")
_KEY_SIZES: Final = (16, 24, 32)
_HEADER = struct.Struct(">II")
_LENGTH = struct.Struct(">I")
_BLOCK_OF: Final = 65_536
"""Bytes of a section in one block, as Cassandra writes them by default
(transparent_data_encryption_options.chunk_length_kb: 64)."""
_HOW: Final = (
    "Configure the node's keystore: `cluster.commitlog_keystore` of the pipeline, or --keystore FILE; "
    "its password comes from the environment"
)


class Decryptor:
    """Decrypts and encrypts the sections of one segment. Counts blocks to distinguish a wrong key from
    damage."""

    def __init__(self, descriptor: Descriptor, keys: Keystore | None, name: str) -> None:
        """Raises UnsupportedSegment (unknown cipher; missing key, retriable) and CorruptDescriptor (no
        initial vector)."""
        self.alias = str(descriptor.params["encKeyAlias"])
        self.name = name
        self.opened = 0
        self.failed = 0
        cipher = str(descriptor.params["encCipher"])
        if cipher.upper() not in _CIPHERS:
            raise UnsupportedSegment(f"the cipher is not supported: {cipher}", operation="decrypt a segment", obj=name)
        self._key = self._find_key(keys)
        self._iv = self._initial_vector(descriptor)

    def unpack(self, blocks: bytes, room: int) -> bytes:
        """All blocks of a section, decrypted and decompressed."""
        parts: list[bytes] = []
        pos = 0
        while pos < len(blocks):
            size, plain_size = self._header(blocks, pos)
            pos += _HEADER.size
            try:
                parts.append(self._open(blocks[pos : pos + size], plain_size, room))
            except CorruptSection:
                self.failed += 1
                raise
            self.opened += 1
            room -= len(parts[-1])
            pos += size
        return b"".join(parts)

    def check_key(self) -> None:
        """Call after all sections. Raises UnsupportedSegment if there were blocks and none could be
        decrypted."""
        if self.failed and not self.opened:
            raise self._unsupported(f"no block can be decrypted with the key `{self.alias}`: the key is wrong, or every block is damaged")

    def pack(self, content: bytes) -> bytes:
        """Inverse of `unpack`: a section's content in blocks."""
        return b"".join(self._block(content[at : at + _BLOCK_OF]) for at in range(0, len(content), _BLOCK_OF))

    @staticmethod
    def most_of(size: int) -> int:
        return codecs.most_of("LZ4Compressor", size)

    def _header(self, blocks: bytes, pos: int) -> tuple[int, int]:
        if len(blocks) - pos < _HEADER.size:
            raise CorruptSection("an encrypted block is cut short")
        size, plain_size = _HEADER.unpack_from(blocks, pos)
        if size == 0 or size % AES_BLOCK or size > len(blocks) - pos - _HEADER.size or not size - AES_BLOCK <= plain_size < size:
            raise CorruptSection(f"an encrypted block has impossible lengths: {size} and {plain_size}")
        return size, plain_size

    def _open(self, ciphertext: bytes, plain_size: int, room: int) -> bytes:
        plain = self._decrypt(ciphertext)
        padding = plain[-1]
        if not 1 <= padding <= AES_BLOCK or plain[-padding:] != bytes([padding]) * padding:
            raise CorruptSection("the padding of an encrypted block is wrong")
        plain = plain[:-padding]
        if len(plain) != plain_size or plain_size < _LENGTH.size:
            raise CorruptSection(f"an encrypted block should hold {plain_size} bytes and holds {len(plain)}")
        content = codecs.unpack_lz4(plain[_LENGTH.size :], room)
        if len(content) != _LENGTH.unpack_from(plain)[0]:
            raise CorruptSection("the lengths in an encrypted block disagree")
        return content

    def _block(self, content: bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        plain = _LENGTH.pack(len(content)) + codecs.pack_lz4(content)
        padding = AES_BLOCK - len(plain) % AES_BLOCK
        encryptor = Cipher(algorithms.AES(self._key), modes.CBC(self._iv)).encryptor()
        ciphertext = encryptor.update(plain + bytes([padding]) * padding) + encryptor.finalize()
        return _HEADER.pack(len(ciphertext), len(plain)) + ciphertext

    def _decrypt(self, ciphertext: bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        decryptor = Cipher(algorithms.AES(self._key), modes.CBC(self._iv)).decryptor()
        return bytes(decryptor.update(ciphertext) + decryptor.finalize())

    def _find_key(self, keys: Keystore | None) -> bytes:
        if keys is None:
            raise self._unsupported(f"decryption key is missing: the segment needs `{self.alias}`, and no keystore is configured")
        try:
            key = keys.secret(self.alias)
        except ConfigError as error:
            raise self._unsupported(str(error)) from error
        if len(key) not in _KEY_SIZES:
            raise self._unsupported(f"the key `{self.alias}` has {8 * len(key)} bits, which is not an AES key size")
        return key

    def _initial_vector(self, descriptor: Descriptor) -> bytes:
        try:
            vector = bytes.fromhex(str(descriptor.params.get("encIV", "")))
        except ValueError:
            vector = b""
        if len(vector) != AES_BLOCK:
            raise CorruptDescriptor("the header has no initial vector of 16 bytes", operation="decrypt a segment", obj=self.name)
        return vector

    def _unsupported(self, message: str, **kwargs: Any) -> UnsupportedSegment:
        return UnsupportedSegment(message, operation="decrypt a segment", obj=self.name, retriable=True, hint=_HOW, **kwargs)

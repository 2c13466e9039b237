"""Encrypted segments: `decryptor` decrypts blocks with a key from a Java keystore (`keystore`: `jceks`,
`pkcs12`)."""

"""Encrypted segments: `decryptor` opens their blocks, with a key from a Java keystore (`keystore`, in `jceks` or `pkcs12` format)."""

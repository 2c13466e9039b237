"""The commit log, one file per wire layer, outermost first.

    descriptor   the segment's header
    sections     sync markers, which chain the sections of a segment
    unpack       compressed and encrypted sections -> the image, which is the uncompressed segment
      codecs, encryption, keystore, jceks, pkcs12
    frames       entries: length, two CRCs, body
    mutation     the body: partition updates -> `writetime.model`
    encode       the writer of all these layers
    idx          the `_cdc.idx` file beside a segment

`segment` walks descriptor, sections and frames of a whole file; `kernel` is its compiled twin. Of all these only `keystore` opens a
file: parsers take bytes and a position and return a value and the next position.

The commands stand on top: `cli` has dump, verify and schema; `inputs` finds segments and `log` reads them; `select`, `dump`, `show`,
`verify`, `tables` and `teach` say what is in them.
"""

"""CQL types: bytes to values and back, and their order (`native`, `types`, `marshal`); what they become elsewhere (`mapping`), and the way
there and back (`arrow`, `avro`, `json`); what names become (`names`); values as CQL text (`literal`)."""

"""CQL types: bytes to values and back, and Cassandra's order of values.

native            simple types, one table; compound   types made of others
types             the grammar of type texts; marshal   the grammar of Java class names
byte_comparable   keys as bytes whose order is the clustering order
literal           values as CQL text; vint   variable-length integers
"""

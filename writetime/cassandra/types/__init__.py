"""CQL types: decoding, encoding and Cassandra's order of values.

native            simple types; compound   types with element or field types
types             the grammar of type texts; marshal   the grammar of Java class names
byte_comparable   keys as bytes whose order is the clustering order; canonical   one spelling for equal elements
literal           values as CQL text; vint   variable-length integers; integers  long ones as decimal text
"""

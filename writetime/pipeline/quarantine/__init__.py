"""What could not be used and was kept: `contents` lists and shows it, `retry` releases it, `published` is how table and topic show it.

`frame_ranges` stores many frames of one segment as one object; `rejected_tables` are tables whose rows cannot be converted.
"""

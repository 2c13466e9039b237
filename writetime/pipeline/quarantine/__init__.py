"""Quarantine: `contents` lists and shows records, `retry` releases them, `published` is their form in table
and topic.

`frame_ranges` stores many frames of one segment as one object; `rejected_tables`: tables whose rows cannot be
converted."""

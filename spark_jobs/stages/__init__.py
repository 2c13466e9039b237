"""The stages of a batch, in the order of the data: functions for `mapInArrow` and what they share.

scan           segments to bodies of mutations: damage, counts, and what each segment holds
explode        bodies to items, one per row that an update touches (`validate_batch`, `validate_row`)
merge_stream   items, sorted, into the state (`merge_batch` for rows that nothing but their own items touches)
typed_events   merged rows to typed events (`typed_columns`), in pages (`event_pages`)
table_events, incomplete_rows   events that belong to no row, and rows that have to be read again
erase_key, erased_events   the stages of a batch that erases a key; its events outside the tables
row_packs, arrow_runs, table_rows, segment_rows   rows as Arrow batches
"""

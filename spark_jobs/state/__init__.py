"""State between batches: `shards`, the remembered rows of one key bucket of a table as a Lance dataset; `places`,
where Lance finds them."""

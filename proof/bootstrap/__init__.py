"""Bootstrap at scale: reads tables of a real cluster during writes, with the job killed half-way."""

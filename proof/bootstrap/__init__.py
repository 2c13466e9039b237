"""Bootstrap at scale: tables of a real ring, read while they are written to, with the job killed half-way."""

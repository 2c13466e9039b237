"""Files of the shipper's state folder, replaced as a whole: a reader, or the next start after a crash, finds the former content or
the new one. Knows no content."""

from __future__ import annotations

from pathlib import Path


def replace(path: Path, content: str) -> None:
    """Write the file, and its folder if there is none. OSError if that fails: the former content stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(content, encoding="utf-8")
    fresh.replace(path)

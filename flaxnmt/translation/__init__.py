"""From lines and documents to their translations."""

"""What is refused before anything is read: `options` of themselves, and what makes no `model`."""

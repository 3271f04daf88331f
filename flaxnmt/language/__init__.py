"""Reading and completing text with models of one stack, and their embeddings in context."""

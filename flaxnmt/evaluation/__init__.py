"""How good translations and answers are, and whether context had a part in it."""

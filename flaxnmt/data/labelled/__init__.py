"""Labelled text for fine-tuning: classes of texts and of pairs, labels of words, answers to questions."""

"""Transactional producers: half messages, and answers to transaction checks."""

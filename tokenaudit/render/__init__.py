"""Results in, text and files' contents out: pure functions, which touch neither files nor terminals."""

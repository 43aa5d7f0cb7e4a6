"""Results as text and files: pure functions of a result, which touch neither files nor terminals."""

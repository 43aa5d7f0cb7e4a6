"""What is wrong with a recorded log: rules, the facts they are checked on, and findings."""

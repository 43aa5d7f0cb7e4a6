"""The replay buffer's lifecycle: pure, standard library only."""

"""Objects with the public names, signatures and rules of trainers' own, as their sources have them."""

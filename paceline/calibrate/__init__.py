"""What lossy rules must know of a pair of models before they are used: measured under the rule inside, which changes nothing."""

"""What happened inside each round of one answer, for people: a page to step through. It only reads rounds, and what the rule was shown."""

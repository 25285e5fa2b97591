"""What a target, its drafters and a user's prompts are like on this machine, and what to make of it."""

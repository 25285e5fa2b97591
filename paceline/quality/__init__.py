"""Are the answers right? Tasks with reference answers, graded for several methods on the same problems."""

"""Does the speed cost quality? Tasks, runs of every rule on the same problems, paired statistics, reports."""

"""What is asked and how an answer is judged: one file per source of problems."""

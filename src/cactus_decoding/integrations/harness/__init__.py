"""What the model of lm-evaluation-harness is made of: its arguments, and what a request asks for."""

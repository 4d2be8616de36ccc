"""What a task of lm-evaluation-harness is made of here: its config, its data, its judgement."""

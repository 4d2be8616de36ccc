"""Cactus inside vLLM: relaxed acceptance per request, by vLLM's own samplers.

Installed beside vLLM it is found by itself (entry point ``vllm.general_plugins``). A request asks for it:

    SamplingParams(extra_args={"cactus_delta": 0.25})      # offline
    {"vllm_xargs": {"cactus_delta": 0.25}}                 # over HTTP

Nothing of vLLM is replaced: the rule is a shift of one logit per drafted token (`shift`), which is undone when vLLM's
lossless sampler has run. `processor` is the form without any patch, for the V2 runner and plain temperature sampling.
"""

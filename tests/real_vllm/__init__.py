"""Stories against a real vLLM server. Run by scripts/test-vllm; not a part of the ordinary test run."""

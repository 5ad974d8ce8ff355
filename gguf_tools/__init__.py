"""Python over GGUF files. `convert` and `inspect` are the commands, the rest serves them.

Knows files, numpy and the installed ggml; nothing of kernels or the plugin.
"""

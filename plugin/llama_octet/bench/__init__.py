"""Timing our kernels against stock ggml: both compute the same graphs in one process.

    ggml.py      the functions of ggml used here, through ctypes
    weights.py   synthetic weights, activations and routing
    layer.py     the graphs: one expert layer, or one matrix product
    sides.py     stock and ours: where each keeps the weights and what computes
    timing.py    interleaved repetitions and their medians
    synthetic.py puts these together for one request
    model.py     whole models, in processes of their own (child.py)
    report.py    the result as text

May use the rest of the package. The command uses it, and crossover_child.py, which times layers for
`auto`.
"""

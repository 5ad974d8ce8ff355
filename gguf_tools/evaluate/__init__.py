"""Fidelity of one model against another: what is measured, where, and how it is shown.

Numbers in, numbers out: nothing here runs a model.
"""

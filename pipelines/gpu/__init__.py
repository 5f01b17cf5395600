"""The benchmark for one GPU: realistic cost and real acceptance without downloaded weights (`python -m pipelines.gpu --help`).

The built-in pair is trained larger, then inflated to the shapes of 1B, 7B and 13B Llamas: the cost of such a model, the function
of a small one; not such a model's quality or acceptance.
"""

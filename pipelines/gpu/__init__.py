"""The benchmark for one GPU: realistic cost and real acceptance without downloaded weights (`python -m pipelines.gpu --help`).

The built-in pair is trained larger, then inflated to the shapes of 1B, 7B and 13B Llamas: the cost of such a model, the function
of a small one; not such a model's quality or acceptance. Decodes are timed by the one harness (`pipelines.measuring.harness`),
and kept as rows of its tables. Measuring needs torch, transformers, numpy and safetensors alone; the report
(`pipelines.gpu.report`) is drawn from what it left anywhere.
"""

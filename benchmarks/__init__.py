"""What safecompile costs and what it saves, measured beside plain ``torch.compile`` and the locks that people write.

``python -m benchmarks`` runs everything; each module runs alone as ``python -m benchmarks.<module>``.
"""

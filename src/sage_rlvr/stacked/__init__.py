"""Floor 4. Many runs of one small model at once: their weights lie in one tensor, so that a step of all is a step of one program.

A model of a million parameters keeps a GPU busy with starting kernels, not with arithmetic. Stacked, R runs share every start,
and the completions of a group share their prompt. Formulas are the product's own (``advantage/``, ``anchor/``, SAGEConfig); a
test compares loss and gradient with SAGETrainer's. For the miniature worlds alone (countdown, left to right).
"""

"""Personal models on the device (DeepType, IMWUT 2018): a shared model is the start, one person's own the goal.

Here, for any torch model:

    output_layer    the last layer: only it learns, the rest is a fixed feature extractor (5.4); cached features.
    compression     embedding and last layer by SVD, 10 % of the singular values (5.1). Words, places or apps that a
                    person uses replace those never used (4); unused ones are dropped (5.2).
    online          learns from suggestions: the inference is reused, nothing is computed again (5.5).
    study           incremental training (4): pausable after any batch, resumed from disk at the next one, bit for bit.
                    Its steps: `mdl.learning.training`.

`words/` has next-word suggestion, the worked example. Personal data (text, words, layers) stays in this process and
in its owner's directory: nothing here knows a mesh.
"""

"""Personal models on the device (DeepType, IMWUT 2018): a shared model is the start, one person's own the goal.

For any torch model:

    output_layer    which layer is last; only it learns, the rest is a fixed feature extractor (5.4); cached features
    compression     embedding and last layer by SVD, 10 % of the singular values (5.1)
    vocabulary      words, places or apps a person uses replace those never used (4); unused ones are dropped (5.2)
    online          learn from what was suggested: the inference is reused, nothing is computed again (5.5)
    optimizer       SGD and Adam over some of a model's parameters, with a state that can be saved
    study           incremental training (4): pausable after any batch, resumed from a file bit for bit

For next words, the worked example:

    corpus, text    text as a keyboard sees it: sentences of words; word and character tokens in one table
    pieces          samples of a sentence, and their batches: padded, by four buckets, or of exactly one length (5.3)
    next_word       the LSTM (2), and its file
    prefix          the loss of samples that share their history, computed once
    efficiency      R(x) and top-k efficiency (3.2), perplexity
    ngrams          counts of one to three words, with or without the typed characters as a filter (3.2)

What is personal (text, words, layers) stays in this process and in its owner's directory: nothing here knows a mesh.
"""

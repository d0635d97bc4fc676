"""Next-word suggestion, the worked example of a personal model (DeepType 2, 3.2).

corpus, text    files and exported chats; text as a keyboard sees it: sentences of words; tokens in one table.
pieces          samples of a sentence, and their batches: padded, by four buckets, or of exactly one length (5.3).
next_word       the LSTM (2); model_file: on disk, with its table, or as an ONNX graph.
prefix          the loss of samples that share their history, computed once; a softmax over a part of the classes.
text_task       a text as the data of a `Study`; with cached features, too.
efficiency      R(x) and top-k efficiency (3.2), perplexity.
mixture         counts of one to three words, with or without the typed characters as a filter (3.2); the mixture.
keyboard        suggestions while somebody types, and learning from them.
personalise     the techniques together, by name (5.6); a person's model brought to a new shared one.
"""

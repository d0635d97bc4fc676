"""Next-word suggestion, the worked example of a personal model (DeepType 2, 3.2).

corpus, text    files and exported chats; text as a keyboard sees it: sentences of words; tokens in one table.
pieces          samples of a sentence, and their batches: padded, by four buckets, or of exactly one length (5.3).
next_word       the LSTM (2), and the loss of samples that share their history; a softmax over a part of the classes.
model_file      the model on disk, with its table, or as an ONNX graph.
efficiency      R(x) and top-k efficiency (3.2), perplexity.
keyboard        suggestions while somebody types, and learning from them; counts of words, and the mixture (3.2).
personalise     the techniques together, by name (5.6); a text as a `Study`'s data; a model brought to a new shared one.
"""

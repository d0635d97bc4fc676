"""Next-word suggestion, the worked example of a personal model (DeepType 2, 3.2).

corpus, text    text as a keyboard sees it: sentences of words; word and character tokens in one table.
pieces          samples of a sentence, and their batches: padded, by four buckets, or of exactly one length (5.3).
next_word       the LSTM (2); model_file: on disk, with its table.
prefix          the loss of samples that share their history, computed once.
text_task       a text as the data of a `Study`; with cached features, too.
efficiency      R(x) and top-k efficiency (3.2), perplexity.
ngrams          counts of one to three words, with or without the typed characters as a filter (3.2).
keyboard        suggestions while somebody types, and learning from them.
personalise     the techniques together, by name (5.6).
"""

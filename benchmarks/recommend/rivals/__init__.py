"""Other ways to recommend, against which DCCL is measured."""
